"""Fixes keep the parentheses of what they move, and are safe only where the program stays the same."""
from __future__ import annotations

import ast
import textwrap

import pytest

from torchlint.engine import lint_source
from torchlint.files import Source
from torchlint.findings import Finding, Safety
from torchlint.fixes.expressions import drop_method_call, operand
from torchlint.fixes.layout import layout
from torchlint.fixes.precedence import OR, POWER, PRIMARY
from torchlint.model import FileModel
from torchlint.rule import all_rules

RULES = {rule.meta.code: rule for rule in all_rules()}


def findings(text: str, code: str) -> list[Finding]:
    """The findings of one rule in a program."""
    return list(lint_source(textwrap.dedent(text).lstrip("\n"), rules=[RULES[code]]))


def fixed(text: str, code: str) -> str:
    """The program with all fixes of a rule, whatever their safety."""
    edits = [edit for finding in findings(text, code) if finding.fix for edit in finding.fix.edits]
    assert edits, "no fix"
    return layout(Source("t.py", textwrap.dedent(text).lstrip("\n"))).apply(edits)


def safety(text: str, code: str) -> list[Safety | None]:
    """How safe the fix of each finding of a rule is; None where there is no fix."""
    return [finding.fix.safety if finding.fix else None for finding in findings(text, code)]


# -- parentheses -----------------------------------------------------------------------------


@pytest.mark.parametrize(("old", "new"), [
    ("print((w + w).data.numpy())", "print((w + w).detach().numpy())"),
    ("print((w * 2).data)", "print((w * 2).detach())"),
    ("print((w if w.sum() else v).data.sum())", "print((w if w.sum() else v).detach().sum())"),
    ("print((-w).data)", "print((-w).detach())"),
    ("print((w - v).data.sum().item())", "print((w - v).detach().sum().item())"),
    ("print((w * 2).sum().data.item())", "print((w * 2).sum().item())"),
    ("print((w.sum() * 2).data.item())", "print((w.sum() * 2).item())"),
    ("print(-(w - v).data, (w[0]).data)", "print(-(w - v).detach(), (w[0]).detach())"),
    ("print((w +  # both\n  v).data)", "print((w +  # both\n  v).detach())"),
    ("print(f'{(w * 2).data}')", "print(f'{(w * 2).detach()}')"),
])
def test_data_of_an_operation_is_detached_as_a_whole(old: str, new: str) -> None:
    head = "import torch\n\nw, v = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)\n"
    assert fixed(f"{head}{old}\n", "TL103") == f"{head}{new}\n"


@pytest.mark.parametrize(("code", "body", "old", "new"), [
    ("TL303", """
        class F(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, w, n):
                ctx.save_for_backward(x, w)
                return x * w * n

            @staticmethod
            def backward(ctx, g):
                x, w = ctx.saved_tensors
                {}
        """, "return (g * w), (g * x)", "return (g * w), (g * x), None"),
    ("TL411", """
        class Attention(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.hard = True

            def forward(self, x):
                return torch.nn.functional.scaled_dot_product_attention(x, x, x, dropout_p={})
        """, "0.1 if self.hard else 0.2", "(0.1 if self.hard else 0.2) if self.training else 0.0"),
    ("TL909", """
        import torchvision


        def make(best, tiny):
            return torchvision.models.resnet18({})
        """, "pretrained=False if tiny else best",
     'weights="IMAGENET1K_V1" if (False if tiny else best) else None'),
])
def test_other_fixes_keep_parentheses(code: str, body: str, old: str, new: str) -> None:
    head = "import torch\n\n"
    body = textwrap.dedent(body).strip() + "\n"
    assert fixed(head + body.format(old), code) == head + body.format(new)


@pytest.mark.parametrize(("text", "least", "expected"), [
    ("(a + b).c", PRIMARY, "(a + b)"), ("((a + b)).c", PRIMARY, "(a + b)"), ("(a).c", PRIMARY, "(a)"),
    ("a.b.c", PRIMARY, "a.b"), ("(a or b).c", PRIMARY, "(a or b)"), ("(await a).c", PRIMARY, "(await a)"),
    ("(yield).c", PRIMARY, "(yield)"), ("f(1)[0].c", PRIMARY, "f(1)[0]"),
])
def test_an_operand_has_the_parentheses_that_it_needs(text: str, least: int, expected: str) -> None:
    model = FileModel(Source("t.py", f"async def f(a, b):\n    {text}\n"))
    (node,) = (one.value for one in ast.walk(model.tree) if isinstance(one, ast.Attribute) and one.attr == "c")
    assert operand(model, node, least) == expected


@pytest.mark.parametrize(("text", "least", "expected"), [
    ("f(a if b else c)", OR, "(a if b else c)"), ("f(a or b)", OR, "a or b"), ("f(a - b)", POWER, "(a - b)"),
    ("f(-a)", POWER, "(-a)"), ("f(a ** b)", POWER, "a ** b"), ("f(1)", POWER, "1"), ("f(1)", PRIMARY, "(1)"),
    ("f(lambda: a)", OR, "(lambda: a)"), ("f((a - b))", POWER, "(a - b)"),
])
def test_an_argument_gets_parentheses_as_an_operand(text: str, least: int, expected: str) -> None:
    model = FileModel(Source("t.py", f"{text}\n"))
    (node,) = (one.args[0] for one in ast.walk(model.tree) if isinstance(one, ast.Call))
    assert operand(model, node, least) == expected


@pytest.mark.parametrize(("old", "new"), [("(a + b).c()", "a + b"), ("a.c()", "a"), ("(a + b).c() * 2", "(a + b) * 2")])
def test_a_method_is_dropped_in_f_strings(old: str, new: str) -> None:
    model = FileModel(Source("t.py", f"print(f'{{{old}}}')\n"))
    (call,) = (one for one in ast.walk(model.tree) if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute))
    text = layout(model.source).apply(drop_method_call(model, call))
    assert ast.dump(ast.parse(text)) == ast.dump(ast.parse(f"print(f'{{{new}}}')"))


# -- what is safe ----------------------------------------------------------------------------

NET = """
    import math

    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self, other):
            super().__init__()
            self.lin = nn.Linear(4, 4)
            self.w = nn.Parameter(torch.zeros(4))

        def loss(self, x):
            return (x * self.w).mean()

        @property
        def mean(self):
            return self.w.mean()

        def forward(self, x):
            return x * self.w

        def {}
    """


@pytest.mark.parametrize(("name", "found"), [
    ("init_weights", True), ("initialise", True), ("_initialize_weights", True), ("initWeights", True),
    ("reinit", True), ("reset_parameters", True), ("weight_init", True), ("kaiminginit", True),
    ("resetParameters", True), ("finite_difference", False), ("definite", False), ("reset", False),
])
def test_names_that_say_that_weights_are_initialised(name: str, found: bool) -> None:
    assert bool(findings(NET.format(f"{name}(self, x):\n            self.w.data.add_(1)"), "TL102")) is found


@pytest.mark.parametrize(("line", "safe"), [
    ("self.w.data.sub_(0.1 * x)", True),
    ("self.w.data.copy_(torch.linspace(0, 1, 4) / math.sqrt(4))", True),
    ("self.w.data.copy_(torch.empty(4).uniform_(-1, 1))", True),
    ("self.w.data.mul_(self.w.data.norm().clamp(max=float(2)))", True),
    ("self.w.data.copy_(torch.from_numpy(x.numpy()))", True),
    ("self.w.data.sub_(0.1 * torch.autograd.grad(self.loss(x), self.w)[0])", False),
    ("self.w.data.copy_(self.lin(x).mean(0).detach())", False),
    ("self.w.data.copy_(self(x).mean(0).detach())", False),
    ("self.w.data.copy_(self.loss(x))", False),
    ("self.w.data.copy_(self.mean)", False),
    ("self.w.data.copy_(other(x))", False),
    ("self.w.data.copy_((kept := self.w * 2).detach())", False),
    ("self.w.data.fill_(self.loss(x))", True),  # evaluated outside of torch.nn.init
])
def test_only_plain_arguments_are_computed_under_no_grad(line: str, safe: bool) -> None:
    text = NET.format(f"init_weights(self, x, other):\n            {line}")
    assert safety(text, "TL102") == [Safety.SAFE if safe else Safety.UNSAFE]


@pytest.mark.parametrize(("before", "after", "safe"), [
    ("loss = self(x).pow(2).sum()", "loss.backward()", False),
    ("loss = self(x).pow(2).sum()", "return loss", False),
    ("loss = (x * self.w).exp().sum()", "return torch.autograd.grad(loss, x)", False),
    ("size = self(x).shape", "return size", True),
    ("with torch.no_grad(): loss = self(x).sum()", "return loss", True),
    ("pass", "return self(x).sum()", True),
])
@pytest.mark.parametrize("write", ["add_(1)", "fill_(1)"])
def test_a_graph_that_is_alive_notices_a_write(before: str, after: str, safe: bool, write: str) -> None:
    body = "\n".join("            " + line for line in (before, f"self.w.data.{write}", after))
    found = safety(NET.format(f"init_weights(self, x):\n{body}"), "TL102")
    assert found == [Safety.SAFE if safe else Safety.UNSAFE]


@pytest.mark.parametrize(("lines", "safe"), [
    (["k = (w.data * w).sum()", "with torch.no_grad():", "    w.add_(1)", "k.backward()"], False),
    (["k = (w.data[0] * w).sum()", "with torch.no_grad():", "    w.add_(1)", "k.backward()"], False),
    (["for _ in range(2):", "    with torch.no_grad():", "        w.add_(1)", "    k = w.data.cpu() * w"], False),
    (["k = (v * w.data).sum()", "opt.step()", "k.backward()"], False),
    (["k = (v * (2 * w.data)).sum()", "opt.step()", "k.backward()"], True),
    (["k = w.data.sum() * w", "opt.step()", "k.sum().backward()"], True),
    (["with torch.no_grad():", "    w.add_(1)", "k = (w.data * w).sum()", "k.backward()"], True),
    (["k = (w.data * w).sum()", "with torch.no_grad():", "    v.add_(1)", "k.backward()"], True),
    (["print(w.data)", "with torch.no_grad():", "    w.add_(1)"], True),
    (["print(w.data * 2)", "opt.step()"], True),
])
def test_what_a_graph_keeps_and_is_changed_is_not_detached_safely(lines: list[str], safe: bool) -> None:
    head = ("import torch\n\nw, v = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)\n"
            "opt = torch.optim.SGD([w, v], lr=0.1)\n")
    assert safety(head + "\n".join(lines) + "\n", "TL103") == [Safety.SAFE if safe else Safety.UNSAFE]


@pytest.mark.parametrize(("lines", "safe"), [
    (["z = Variable(y)", "z.requires_grad_()"], False),
    (["z = Variable(y)", "z.requires_grad = True"], False),
    (["z = Variable(y)", "z += w"], False),
    (["z = Variable(y)", "z[0] = w[0]"], False),
    (["z = Variable(y)", "z.mul_(w)"], False),
    (["z = Variable(y)", "z.unsqueeze_(0)"], False),
    (["z = Variable(y)", "z.data = w.detach()"], False),
    (["z = Variable(y).requires_grad_()"], False),
    (["box.x = Variable(y)", "box.x.requires_grad_()"], False),
    (["z = Variable(y)", "print(z.sum(), z[0])"], True),
    (["z = Variable(y)", "print(z.shape, z.requires_grad)"], True),
    (["z = Variable(y.clone())", "z.requires_grad_()"], True),
    (["z = Variable(torch.zeros(3))", "z.requires_grad_()"], True),
    (["z = Variable(y, requires_grad=True)", "z.grad = None"], True),
    (["print(Variable(y) * 2)"], True),
])
def test_a_variable_that_is_changed_is_another_tensor(lines: list[str], safe: bool) -> None:
    head = ("import torch\nfrom torch.autograd import Variable\n\ny = torch.ones(3)\n"
            "w = torch.ones(3, requires_grad=True)\n")
    assert safety(head + "\n".join(lines) + "\n", "TL905") == [Safety.SAFE if safe else Safety.UNSAFE]
