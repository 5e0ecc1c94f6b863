"""For every claim, programs of which it is true and false: (claim, rule code or "", bad, good).

The code stands for rules that their probe treats in a way of its own.
"""
from __future__ import annotations

from torchlint import claims

GRAPH = """
import torch

STEPS = 4
net = torch.nn.Linear(3, 1)
total = torch.zeros(())
for _ in range(STEPS):
    loss = net(torch.randn(2, 3)).sum()
    loss.backward()
    total = total + loss  #!
"""

CONTRACT = """
import torch


class Scaled(torch.nn.Module):  #!
    def __init__(self, width=8):
        super().__init__()
        self.scale = torch.rand(width)
        self.fc = torch.nn.Linear(width, width)

    def forward(self, x):
        return self.fc(x * self.scale)
"""
KEPT = 'self.register_buffer("scale", torch.rand(width))'

EVALUATION = """
import torch


def evaluate(net, batches):
    hits = 0
    net.eval()
    for x in batches:
        out = net(x)  #!
        hits += int((out > 0).sum())
    return hits


evaluate(torch.nn.Linear(3, 1), torch.randn(4, 2, 3))
"""

CACHE = """
import torch

STEPS = 4
cache = []
for step in range(STEPS):
    x = torch.randn(64)
    cache.append(x * 2)  #!
"""

CYCLE = """
import torch


class Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.y = y  #!
        return y

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.y


w = torch.ones(3, requires_grad=True)
for _ in range(3):
    Exp.apply(w).sum().backward()
"""

CYCLE_FREE = CYCLE.replace("ctx.y = y  #!", "ctx.save_for_backward(y)").replace("ctx.y", "ctx.saved_tensors[0]")

SAVED = """
import torch

w = torch.ones(3, requires_grad=True)
y = (w * w).sum()
w.data.mul_(100)  #!
y.backward()
"""

SCALED = """
import torch

net = torch.nn.Linear(3, 1)
for x in torch.ones(4, 2, 3):
    loss = net(x).mean()
    (loss * 256).backward()  #!
"""

CUT = """
import torch

net = torch.nn.Linear(3, 1)
loss = net(torch.ones(2, 3)).mean()
torch.tensor(loss.item(), requires_grad=True).backward()  #!
"""

NO_GRAPH = """
import torch

net = torch.nn.Linear(3, 1)
loss = net(torch.ones(2, 3)).mean().detach()  #!
loss.backward()
"""

UNUSED = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 1)  #!

    def forward(self, x):
        return self.first(x)


net = Net()
net(torch.ones(2, 3)).sum().backward()
"""

PILE = """
import torch

net = torch.nn.Linear(3, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for x in torch.ones(4, 2, 3):
    net(x).square().mean().backward()
    opt.step()  #!
"""

LOST = """
import torch

net = torch.nn.Linear(3, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for i, x in enumerate(torch.randn(8, 2, 3)):
    opt.zero_grad()  #!
    net(x).square().mean().backward()
    if (i + 1) % 4 == 0:
        opt.step()
"""

ORPHANS = """
import torch
from torch import nn

net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
net[1] = nn.Linear(3, 2)  #!
for x in torch.ones(3, 2, 3):
    opt.zero_grad()
    net(x).sum().backward()
    opt.step()
"""

HIDDEN = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(2, 2) for _ in range(3)]  #!

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


Net()(torch.ones(1, 2))
"""

CONSTANT = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.ones(3)  #!

    def forward(self, x):
        return x * self.scale


Net()(torch.ones(1, 3))
"""

LOCAL_LAYER = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(2, 2)

    def forward(self, x):
        return nn.Linear(2, 2)(x)  #!


Net()(torch.ones(1, 2))
"""

CALLED = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        return self.layer.forward(x)  #!


Net()(torch.ones(1, 2))
"""

NOISY = """
import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return F.dropout(self.layer(x), 0.5)  #!


Net()(torch.ones(1, 8))
"""

SOFTMAX = """
import torch

logits = torch.tensor([[5.0, 0.0]])
loss = torch.nn.functional.cross_entropy(logits.softmax(-1), torch.tensor([0]))  #!
print(round(loss.item(), 3))
"""

ALIAS = """
import torch

net = torch.nn.Linear(2, 1)
best = net.state_dict()  #!
with torch.no_grad():
    net.weight.zero_()
"""

REPEATED = """
import torch
from torch import nn

layer = nn.Linear(2, 2)
layers = nn.ModuleList([layer] * 3)  #!
"""

DROPPED = """
import torch

x = torch.ones(3)
x.to(torch.float64)  #!
y = x * 2
"""

FROZEN = """
import torch

net = torch.nn.Linear(2, 1)
for p in net.parameters():
    p.require_grad = False  #!
"""

CLEARED = """
import torch

net = torch.nn.Linear(3, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for x in torch.ones(3, 2, 3):
    net(x).square().mean().backward()
    opt.zero_grad()  #!
    opt.step()
"""

LEFT_OFF = """
import torch


def evaluate(x):
    torch.set_grad_enabled(False)  #!
    return x * 2


evaluate(torch.ones(2))
"""

GENERATOR = """
import torch


def batches():
    with torch.no_grad():  #!
        for x in torch.ones(3, 2):
            yield x * 2


for x in batches():
    print(x.sum().item())
"""

EVAL_MODE = """
import torch
from torch import nn


def validate(net):
    net.eval()  #!
    return net(torch.ones(1, 2))


net = nn.Sequential(nn.Linear(2, 2), nn.Dropout())
validate(net)
"""

THAWED = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.drop = nn.Dropout()

    def forward(self, x):
        return self.drop(self.fc(x))

    def train(self, mode=True):  #!
        self.fc.train(mode)
        return self


Net().eval()(torch.ones(1, 2))
"""

SHARED_DEFAULT = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, act=nn.PReLU()):  #!
        super().__init__()
        self.act = act if act is not None else nn.PReLU()

    def forward(self, x):
        return self.act(x)


Net()(torch.ones(2))
"""

REBOUND = """
import torch

net = torch.nn.Linear(2, 2)
for p in net.parameters():
    p = torch.zeros_like(p)  #!
"""

OLD_NAME = """
import torch

x = torch.ones(2, 3)
y = torch.tensor(x)  #!
"""

WHERE = """
import torch

x = torch.tensor([0.0, 4.0], requires_grad=True)
y = torch.where(x > 0, x.sqrt(), torch.zeros(2))  #!
y.sum().backward()
"""

READING = """
import torch

STEPS = 5
total = 0.0
for _ in range(STEPS):
    total += torch.ones(2).sum().item()  #!
"""

SLOW = """
import torch

x = torch.ones(3000)
total = 0.0
for i in range(len(x)):  #!
    total += x[i] * 2
print(float(total))
"""

LOAD = """
import torch

try:
    state = torch.load("missing.pt", weights_only=False)  #!
except Exception as error:
    print(type(error).__name__)
"""

BREAK = """
import torch


def f(x):
    x = x + 1
    print("here")  #!
    return x * 2


torch.compile(f)(torch.ones(2))
"""

BARRIER = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 0:
    dist.barrier()  #!
total = torch.ones(1)
dist.all_reduce(total)
dist.destroy_process_group()
"""

DATA = """
import torch

w = torch.ones(3, requires_grad=True)
w.data.fill_(2)  #!
(w * w).sum().backward()
"""

RETAINED = """
import torch

w = torch.ones(3, requires_grad=True)
for _ in range(3):
    loss = (w * 2).exp().sum()
    loss.backward(retain_graph=True)  #!
"""

Row = tuple[claims.Claim, str, str, str]


def row(claim: claims.Claim, code: str, bad: str, old: str, new: str) -> Row:
    """A program and its corrected form, in which `old` is replaced by `new`."""
    assert bad.count(old) == 1, (old, bad.count(old))
    return claim, code, bad, bad.replace(old, new).replace("  #!", "")


PROGRAMS: list[Row] = [
    row(claims.GraphGrows(), "", GRAPH, "total + loss", "total + loss.detach()"),
    row(claims.GraphGrows(), "TL210", EVALUATION, "def evaluate", "@torch.no_grad()\ndef evaluate"),
    row(claims.MemoryGrows(), "", CACHE, "cache.append(x * 2)", "cache = [x * 2]"),
    row(claims.MemoryHeld(), "TL204", RETAINED, "retain_graph=True", ""),
    (claims.CycleLeaks(), "TL305", CYCLE, CYCLE_FREE),
    row(claims.WrongGradient(), "TL101", SAVED, "w.data.mul_(100)", "w.sum()"),
    row(claims.WrongGradient(), "", SCALED, "(loss * 256)", "loss"),
    row(claims.NoGradient(), "", CUT, "torch.tensor(loss.item(), requires_grad=True)", "loss"),
    row(claims.NoGradient(), "", NO_GRAPH, ".detach()", ""),
    row(claims.NoGradient(), "TL421", UNUSED, "return self.first(x)", "return self.second(self.first(x))"),
    row(claims.GradientsAccumulate(), "TL501", PILE, "opt.step()  #!", "opt.step()\n    opt.zero_grad()"),
    row(claims.GradientsAccumulate(), "TL503", LOST, "    opt.zero_grad()  #!\n", "    if i % 4 == 0:\n        opt.zero_grad()\n"),
    row(claims.NotOptimized(), "TL512", ORPHANS, "net[1] = nn.Linear(3, 2)",
        "net[1] = nn.Linear(3, 2)\nopt = torch.optim.SGD(net.parameters(), lr=0.1)"),
    row(claims.NotRegistered(), "TL405", HIDDEN, "[nn.Linear(2, 2) for _ in range(3)]",
        "nn.ModuleList([nn.Linear(2, 2) for _ in range(3)])"),
    row(claims.NotRegistered(), "TL409", CONSTANT, "self.scale = torch.ones(3)",
        'self.register_buffer("scale", torch.ones(3))'),
    row(claims.NotRegistered(), "TL408", LOCAL_LAYER, "return nn.Linear(2, 2)(x)", "return self.out(x)"),
    row(claims.HooksSkipped(), "TL402", CALLED, "self.layer.forward(x)", "self.layer(x)"),
    row(claims.OutputsDiffer(), "TL411", NOISY, "0.5)", "0.5, self.training)"),
    row(claims.OutputsDiffer(), "", SOFTMAX, "logits.softmax(-1)", "logits"),
    row(claims.Aliased(), "TL423", ALIAS, "net.state_dict()", "{k: v.clone() for k, v in net.state_dict().items()}"),
    row(claims.Aliased(), "TL412", REPEATED, "[layer] * 3", "[nn.Linear(2, 2) for _ in range(3)]"),
    row(claims.NoEffect(), "TL113", DROPPED, "x.to(", "x = x.to("),
    row(claims.NoEffect(), "TL208", FROZEN, "require_grad", "requires_grad"),
    row(claims.NoEffect(), "TL502", CLEARED, "    opt.zero_grad()  #!\n    opt.step()", "    opt.step()\n    opt.zero_grad()"),
    row(claims.ModeLeaks(), "TL211", LEFT_OFF, "    torch.set_grad_enabled(False)  #!\n    return x * 2",
        "    with torch.no_grad():\n        return x * 2"),
    row(claims.ModeLeaks(), "TL212", GENERATOR, "    with torch.no_grad():  #!\n        for x in torch.ones(3, 2):\n            yield x * 2",
        "    for x in torch.ones(3, 2):\n        with torch.no_grad():\n            y = x * 2\n        yield y"),
    row(claims.ModeLeaks(), "TL515", EVAL_MODE, "    return net(torch.ones(1, 2))",
        "    out = net(torch.ones(1, 2))\n    net.train()\n    return out"),
    row(claims.ModeLeaks(), "TL415", THAWED, "        self.fc.train(mode)\n        return self", "        return super().train(mode)"),
    row(claims.Aliased(), "TL413", SHARED_DEFAULT, "act=nn.PReLU()):", "act=None):"),
    row(claims.NoEffect(), "TL425", REBOUND, "p = torch.zeros_like(p)", "p.detach().zero_()"),
    row(claims.Raises("RuntimeError", "shape"), "", "import torch\nx = torch.ones(6)\nx.view(4)  #!\n", "view(4)", "view(3, 2)"),
    row(claims.Warns("copy construct"), "TL110", OLD_NAME, "torch.tensor(x)", "x.detach().clone()"),
    row(claims.Anomaly(), "TL220", WHERE, "x.sqrt()", "x.clamp_min(1e-9).sqrt()"),
    row(claims.WaitsEveryStep(), "TL602", READING, ".item()", ""),
    row(claims.Slower(), "", SLOW, "for i in range(len(x)):  #!\n    total += x[i] * 2", "total = (x * 2).sum()"),
    row(claims.ExecutesCode(), "TL904", LOAD, "False", "True"),
    row(claims.BreaksContract(), "TL428", CONTRACT, "self.scale = torch.rand(width)", KEPT),
    row(claims.GraphBreaks(), "TL803", BREAK, '    print("here")  #!\n', ""),
    row(claims.Deadlocks(), "TL702", BARRIER, "if dist.get_rank() == 0:\n    dist.barrier()", "dist.barrier()"),
    row(claims.Equivalent(), "TL102", DATA, "w.data.fill_(2)", "torch.nn.init.constant_(w, 2)"),
]  # fmt: skip
