"""Faults that a plain run with default arguments hides: nothing is refuted before they had a chance to show."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch")

from runtime_check.evidence import Outcome, Verdict
from runtime_check.plan import from_finding
from runtime_check.pool import Pool
from torchlint.claims import Aliased, Claim, NoGradient, NotRegistered, OutputsDiffer, Raises
from torchlint.findings import Confidence, Finding, Severity, Span

OVERWRITTEN = Raises("RuntimeError", "modified by an inplace operation")


def outcome_of(pool: Pool, text: str, claim: Claim, code: str, corrected: str | None = None) -> Outcome:
    """The outcome for a finding in a file, compared with a corrected one of as many lines; `#!` marks the line."""
    text = text.lstrip("\n")
    line = next(n for n, row in enumerate(text.splitlines(), 1) if "#!" in row)
    finding = Finding("file.py", Span(line, 1, line, 2), code, "test", Severity.ERROR, Confidence.SURE, "message")
    case = from_finding(finding, claim, text, 0, seconds=20, path="file.py")
    if corrected is not None:
        case = replace(case, corrected=corrected.lstrip("\n"), mended=case.flagged, correction="with the correction")
    ((_, outcome),) = pool.run([case])
    return outcome


FORWARD = """
import torch
from torch import nn


class Broken(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        raise ValueError("not written yet")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Linear(4, 4)

    def forward(self, x):
        y = {made}
        {flagged}  #!
        return {given}
"""


@pytest.mark.parametrize(
    ("made", "flagged", "given", "verdict", "reason"),
    [
        ("self.f(x).sigmoid()", "y += 1", "y", Verdict.CONFIRMED, "a backward from what the call returns raises"),
        ("self.f(x).sigmoid()", "y[:, 0] = 1", "y.sum()", Verdict.CONFIRMED, "modified by an inplace"),
        ("self.f(x)", "y += 1", "y", Verdict.REFUTED, "without the claimed exception"),
        ("self.f(x).detach().sigmoid()", "y += 1", "y", Verdict.CANNOT_TELL, "no backward could be run"),
        ("Broken.apply(self.f(x))", "y += 1", "y", Verdict.CANNOT_TELL, "another error (ValueError"),
        ("self.f(x).sigmoid()", "y += 1", "(self.f(x), y)", Verdict.CANNOT_TELL, "first output alone"),
    ],
)
def test_what_a_forward_overwrites_is_told_by_a_backward(
    pool: Pool, made: str, flagged: str, given: str, verdict: Verdict, reason: str
) -> None:
    program = FORWARD.format(made=made, flagged=flagged, given=given)
    outcome = outcome_of(pool, program, OVERWRITTEN, "TL105")
    assert outcome.verdict is verdict and reason in outcome.why, outcome


IDLE = {
    "TL405": (NotRegistered(), "self.layers = [nn.Linear(4, 4) for _ in range(depth)]  #!", "self.layers", "depth=0"),
    "TL412": (Aliased(), "self.layers = nn.ModuleList([nn.Linear(4, 4)] * depth)  #!", "self.layers", "depth=1"),
}
LAYERS = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, {default}):
        super().__init__()
        self.f = nn.Linear(4, 4)
        {flagged}

    def forward(self, x):
        for layer in {layers}:
            x = layer(x)
        return self.f(x)
"""
LATER = "self.layers = []  #!\n        for _ in range(depth):\n            self.layers.append(nn.Linear(4, 4))"


@pytest.mark.parametrize("flagged", [IDLE["TL405"][1], LATER])
def test_layers_of_which_there_are_none_by_default_are_made(pool: Pool, flagged: str) -> None:
    program = LAYERS.format(default="depth=0", flagged=flagged, layers="self.layers")
    outcome = outcome_of(pool, program, NotRegistered(), "TL405")
    assert outcome.verdict is Verdict.CONFIRMED or "follow" in outcome.why, outcome
    assert "Net(depth=2)" in outcome.how, outcome


def test_layers_for_sizes_of_which_there_are_none_by_default_are_made(pool: Pool) -> None:
    flagged = "self.layers = [nn.Linear(4, size) for size in sizes]  #!"
    program = LAYERS.format(default="sizes=()", flagged=flagged, layers="self.layers")
    outcome = outcome_of(pool, program, NotRegistered(), "TL405")
    assert outcome.verdict is not Verdict.REFUTED and "Net(sizes=(4, 4))" in outcome.how, outcome


def test_an_empty_list_refutes_nothing(pool: Pool) -> None:
    flagged = "self.layers = [nn.Linear(a, b) for a, b in zip(sizes, sizes[1:])]  #!"
    program = LAYERS.format(default="sizes=()", flagged=flagged, layers="self.layers")
    outcome = outcome_of(pool, program, NotRegistered(), "TL405")
    assert outcome.verdict is Verdict.CANNOT_TELL and "`Net.layers` is empty" in outcome.why, outcome


@pytest.mark.parametrize("code", sorted(IDLE))
def test_the_amount_that_the_script_itself_gives_is_kept_and_refutes_nothing(pool: Pool, code: str) -> None:
    claim, flagged, layers, default = IDLE[code]
    program = LAYERS.format(default=default, flagged=flagged, layers=layers) + f"\n\nNet({default})(torch.ones(2, 4))\n"
    outcome = outcome_of(pool, program, claim, code)
    assert outcome.verdict is Verdict.CANNOT_TELL and f"with {default} " in outcome.why, outcome


def test_two_copies_are_made_where_one_is_the_default(pool: Pool) -> None:
    claim, flagged, layers, default = IDLE["TL412"]
    outcome = outcome_of(pool, LAYERS.format(default=default, flagged=flagged, layers=layers), claim, "TL412")
    assert outcome.verdict is not Verdict.REFUTED and "Net(depth=2)" in outcome.how, outcome


DROPPED = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, p=0.0):
        super().__init__()
        self.f = nn.Linear(16, 16)
        self.p = p

    def forward(self, x):
        return {flagged}  #!
"""


@pytest.mark.parametrize("flagged", [
    "nn.functional.dropout(self.f(x), self.p)",
    "nn.functional.scaled_dot_product_attention(self.f(x), x, x, dropout_p=self.p)",
])
def test_what_is_dropped_with_no_probability_by_default_is_dropped(pool: Pool, flagged: str) -> None:
    outcome = outcome_of(pool, DROPPED.format(flagged=flagged), OutputsDiffer(), "TL411")
    assert outcome.verdict is Verdict.CONFIRMED and "Net(p=0.5)" in outcome.how, outcome
    called = DROPPED.format(flagged=flagged) + "\n\nNet(p=0.0)(torch.ones(2, 16))\n"
    outcome = outcome_of(pool, called, OutputsDiffer(), "TL411")
    assert outcome.verdict is Verdict.CANNOT_TELL and "with self.p=0.0 nothing is dropped" in outcome.why, outcome


RETURNS = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, flag=True):
        super().__init__()
        self.flag = flag
        self.f = nn.Linear(4, 4)

    def forward(self, x):
        if self.flag:  #!
            return self.f(x)
"""


def test_the_end_of_a_forward_that_defaults_do_not_come_to_is_looked_at(pool: Pool) -> None:
    claim = Raises("TypeError|AttributeError", "NoneType")
    outcome = outcome_of(pool, RETURNS, claim, "TL420")
    assert outcome.verdict is Verdict.CONFIRMED and "flag=False" in outcome.how, outcome
    second = "            return self.f(x)\n        elif x is not None and not self.flag:\n            return x"
    outcome = outcome_of(pool, RETURNS.replace("            return self.f(x)", second), claim, "TL420")
    assert outcome.verdict is not Verdict.REFUTED, outcome
    outcome = outcome_of(pool, RETURNS + "\n\nNet(flag=True)(torch.ones(2, 4))\n", claim, "TL420")
    assert outcome.verdict is Verdict.CANNOT_TELL and "its end was not come to" in outcome.why, outcome


CONVERTED = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, {parameter}):
        super().__init__()
        self.w = nn.Parameter(torch.randn(4)).{conversion}  #!

    def forward(self, x):
        return x * self.w
"""


@pytest.mark.parametrize(
    ("parameter", "conversion", "verdict"),
    [
        ("device", "to(device)", Verdict.CANNOT_TELL),
        ("device='cpu'", "to('cuda' if device is None else device)", Verdict.CANNOT_TELL),
        ("dtype=torch.float32", "to(dtype)", Verdict.CONFIRMED),
        ("dtype", "to(dtype=dtype)", Verdict.CONFIRMED),
        ("width=4", "float()", Verdict.REFUTED),
    ],
)
def test_a_conversion_that_changes_nothing_here_refutes_nothing(
    pool: Pool, parameter: str, conversion: str, verdict: Verdict
) -> None:
    outcome = outcome_of(pool, CONVERTED.format(parameter=parameter, conversion=conversion), NotRegistered(), "TL407")
    if verdict is Verdict.CONFIRMED:  # without a fix here, a tensor that follows no conversion is all there is to see
        assert outcome.verdict is Verdict.CONFIRMED and "float64" in outcome.how, outcome
    else:
        assert outcome.verdict is verdict, outcome
        assert ("changes nothing on this machine" in outcome.why) == (verdict is Verdict.CANNOT_TELL), outcome


PENALTY = """
import torch
from torch import nn


def penalty({model}, real, fake, opt):
    mix = (0.3 * real + 0.7 * fake).requires_grad_()
    out = d(mix)
    g, = torch.autograd.grad(out.sum(), mix)  #!
    loss = out.mean() + ((g.norm(2, dim=1) - 1) ** 2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
"""


@pytest.mark.parametrize("model", ["d", "d: nn.Module", "d: nn.Linear"])
def test_a_graph_that_is_freed_before_backward_is_no_reason_for_another_model(pool: Pool, model: str) -> None:
    program = PENALTY.format(model=model)
    corrected = program.replace("mix)  #!", "mix, create_graph=True)  #!")
    outcome = outcome_of(pool, program, NoGradient(), "TL214", corrected)
    assert outcome.verdict is Verdict.CONFIRMED and "a second time" in outcome.why, outcome
