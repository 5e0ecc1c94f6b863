"""A model used for inference after loading its weights, without a word about its mode.

A new Module is in training mode, and `load_state_dict` does not change that. BatchNorm then normalises with the
statistics of the batch at hand instead of the loaded ones, and Dropout drops: predictions depend on what else is
in the batch, or differ from call to call.

Call `eval()` after loading for inference, or `train()` to say that training is meant.
"""

from __future__ import annotations

from collections.abc import Iterator

from torchlint.claims import OutputsDiffer
from torchlint.findings import Confidence, Severity
from torchlint.model import Event, FileModel, Flow, Value, training
from torchlint.model.environment import switches
from torchlint.model.library import makes_model
from torchlint.rule import Example, Hit, Meta

META = Meta(
    "TL529", "eval-after-load-missing", Severity.ADVICE, stable=False, triggers=("load_state_dict",)
)
CLAIM = OutputsDiffer()

EXAMPLES = [
    Example(
        bad="""
        import torch
        from torch import nn

        torch.manual_seed(0)
        trained = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        model.load_state_dict(trained.state_dict())  #!
        with torch.no_grad():
            prediction = model(torch.randn(3, 4))
        print(prediction)
        """,
        good="""
        import torch
        from torch import nn

        torch.manual_seed(0)
        trained = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        model.load_state_dict(trained.state_dict())
        model.eval()
        with torch.no_grad():
            prediction = model(torch.randn(3, 4))
        print(prediction)
        """,
    ),
    Example(
        bad="""
        import torch
        from torch import nn


        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(4, 4)
                self.norm = nn.BatchNorm1d(4)

            def forward(self, x):
                return self.norm(self.fc(x))


        def load(state):
            net = Net()
            net.load_state_dict(state)  #!
            return net


        @torch.no_grad()
        def main():
            torch.manual_seed(0)
            net = load(Net().state_dict())
            for x in torch.randn(2, 3, 4):
                print(net(x).argmax(1).tolist(), net(x).sum().item())


        main()
        """,
        good="""
        import torch
        from torch import nn


        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(4, 4)
                self.norm = nn.BatchNorm1d(4)

            def forward(self, x):
                return self.norm(self.fc(x))


        def load(state):
            net = Net()
            net.load_state_dict(state)
            return net.eval()


        @torch.no_grad()
        def main():
            torch.manual_seed(0)
            net = load(Net().state_dict())
            for x in torch.randn(2, 3, 4):
                print(net(x).argmax(1).tolist(), net(x).sum().item())


        main()
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn

    import tools

    state = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).state_dict()
    first = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
    first.load_state_dict(state)
    print(first(torch.randn(3, 4)).sum().item())
    second = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    second.load_state_dict(state)
    second.train(False)
    print(second(torch.randn(3, 4)).sum().item())
    third = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    third.load_state_dict(state)
    tools.prepare(third)
    print(third(torch.randn(3, 4)).sum().item())
    plain = nn.Linear(4, 4)
    plain.load_state_dict(nn.Linear(4, 4).state_dict())
    print(plain(torch.randn(3, 4)).sum().item())


    def predict(model, state, x):
        model.load_state_dict(state)
        with torch.no_grad():
            return model(x)
    """,
    """
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout())
    model.load_state_dict(nn.Sequential(nn.Linear(4, 4), nn.Dropout()).state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    """,
]
MODES = ("train", "eval", "set_mode")


def check(model: FileModel) -> Iterator[Hit]:
    """Loads into a model made in sight that is then called, never told its mode, and never trained."""
    yield from training.once(model, loads(model))


def loads(model: FileModel) -> Iterator[tuple[Event, Hit]]:
    """The loads of every function that inference follows."""
    for _, flow in training.functions_first(model):
        for load in flow.of("load_state"):
            if depends_on_mode(load.target) and made_here(model, load.target) and is_inference(flow, load):
                yield load, Hit(
                    training.place_of(model, load),
                    "the model is still in training mode when it is used; call `eval()` after loading",
                    confidence=min(load.target.sure, Confidence.LIKELY),
                )


def depends_on_mode(module: Value) -> bool:
    """Whether a module surely has batch norm or dropout; model zoos' networks are taken to."""
    return switches(module) or makes_model(module.name)


def made_here(model: FileModel, module: Value) -> bool:
    """Whether the file shows how the module is made, so that nothing else can have set its mode."""
    return module.site is not None and model.has(module.site) and module.site is module.ident


def is_inference(flow: Flow, load: Event) -> bool:
    """Whether the model is called later, its mode never set, nothing trained, and nothing hidden."""
    module = load.target
    at = flow.events.index(load)
    calls = [e for e in flow.events[at:] if e.what == "call" and training.same(e.target, module)]
    for event in flow.events:
        if event.what in MODES and not training.different(event.target, module):
            return False
        if event.what in ("backward", "make_optimizer", "autograd_grad"):
            return False
        if event.what in ("unknown_call", "construct") and any(holds(arg, module) for arg in event.args):
            return False
    return bool(calls)


def holds(arg: Value, module: Value) -> bool:
    """Whether code that cannot be seen is given the model."""
    return training.same(arg, module) or any(training.same(part, module) for part in arg.parts())
