"""What must not be refuted: runs in which the flagged code had no chance to show its fault."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

pytest.importorskip("torch")

from runtime_check.evidence import Outcome, Verdict
from runtime_check.plan import Case, from_example, from_finding
from runtime_check.pool import Pool
from runtime_check.probes.bench import Run
from torchlint.claims import Claim, NoEffect, OutputsDiffer, Warns, WrongGradient
from torchlint.findings import Confidence, Finding, Severity, Span
from torchlint.rule import Example, Meta, Rule


def compared(pool: Pool, claim: Claim, code: str, bad: str, good: str) -> Outcome:
    """The outcome for a whole program, compared with a corrected one; `#!` marks the line."""
    rule = Rule(Meta(code, "test", Severity.ERROR), lambda model: iter(()), "", "graph", "test", claim)
    ((_, outcome),) = pool.run([from_example(rule, Example(bad, good), "bad", 0, seconds=40)])
    return outcome


def of_file(pool: Pool, text: str, claim: Claim, code: str, path: str = "file.py",
            factories: tuple[tuple[str, str], ...] = ()) -> Outcome:
    """The outcome for a finding in a file that is cut up; `#!` marks the line."""
    text = textwrap.dedent(text).lstrip("\n")
    line = next(n for n, row in enumerate(text.splitlines(), 1) if "#!" in row)
    finding = Finding(path, Span(line, 1, line, 2), code, "test", Severity.ERROR, Confidence.SURE, "message")
    case: Case = from_finding(finding, claim, text, 0, seconds=20, path=path, factories=factories)
    ((_, outcome),) = pool.run([case])
    return outcome


PLAIN = """
import torch
import torch.nn.functional as F
from torch import nn


class Plain(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc = nn.Linear(width, width)

    def forward(self, x):
        return F.dropout(torch.relu(self.fc(x)), 0.5)  #!
"""


def test_dropout_of_a_module_that_a_factory_makes_is_seen(pool: Pool, tmp_path: Path) -> None:
    (tmp_path / "fac.py").write_text("def make():\n    from plain import Plain\n    return Plain(8)\n")
    (tmp_path / "plain.py").write_text(PLAIN)
    factories = (("plain:Plain", f"{tmp_path}/fac.py:make"),)
    outcome = of_file(pool, PLAIN, OutputsDiffer(), "TL411", f"{tmp_path}/plain.py", factories)
    assert outcome.verdict is Verdict.CONFIRMED, outcome


def test_dropout_that_drops_little_is_looked_at_often_enough(pool: Pool) -> None:
    text = PLAIN.replace("0.5", "0.1") + "\n\ndef build():\n    return Plain(2)(torch.rand(1, 2))\n\n\nbuild()\n"
    text = text.replace("torch.relu(self.fc(x))", "x + 1")
    outcome = of_file(pool, text, OutputsDiffer(), "TL411")
    assert outcome.verdict is Verdict.CONFIRMED, outcome


def test_a_forward_that_is_called_by_itself_refutes_nothing(pool: Pool) -> None:
    program = PLAIN + "\n\nPlain(4).forward(torch.ones(2, 4))\n"
    outcome = compared(pool, OutputsDiffer(), "TL411", program, program.replace("0.5)", "0.5, self.training)"))
    assert outcome.verdict is Verdict.CANNOT_TELL and "not within a module" in outcome.why, outcome


SCALED = """
import torch

net = torch.nn.Linear(2, 1)
sgd = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = {scaler}
scaler.scale(net(torch.ones(4, 2)).pow(2).sum() * 100).backward()
torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)  #!
scaler.step(sgd)
scaler.update()
"""


@pytest.mark.parametrize(
    ("scaler", "verdict"),
    [
        ('torch.amp.GradScaler("cuda")', Verdict.CONFIRMED),  # made to work on the CPU
        ('torch.amp.GradScaler("cpu", enabled=False)', Verdict.CANNOT_TELL),
    ],
)
def test_a_scaler_that_scales_nothing_refutes_nothing(pool: Pool, scaler: str, verdict: Verdict) -> None:
    if not hasattr(torch_amp(), "GradScaler"):
        pytest.skip("this torch has no scaler for the CPU")
    bad = SCALED.format(scaler=scaler)
    good = bad.replace("torch.nn.utils.clip", "scaler.unscale_(sgd)\ntorch.nn.utils.clip").replace("  #!", "")
    outcome = compared(pool, WrongGradient(), "TL509", bad, good)
    assert outcome.verdict is verdict, outcome
    assert verdict is Verdict.CONFIRMED or "switched off" in outcome.why


def torch_amp() -> object:
    """The module that holds the scalers."""
    import torch

    return torch.amp


CLIPPED = """
import torch

net = torch.nn.Linear(2, 1)
sgd = torch.optim.SGD(net.parameters(), lr=0.1)
net(torch.ones(4, 2)).sum().backward()
sgd.step()
torch.nn.utils.clip_grad_norm_(net.parameters(), {limit})  #!
"""


@pytest.mark.parametrize("limit", ["1000.0", "0.5"])
def test_gradients_below_the_limit_refute_nothing(pool: Pool, limit: str) -> None:
    bad = CLIPPED.format(limit=limit)
    good = bad.replace("sgd.step()\n", "").replace("  #!", "\nsgd.step()")
    outcome = compared(pool, NoEffect(), "TL507", bad, good)
    assert outcome.verdict is Verdict.CONFIRMED, outcome
    lowered = any("never reached" in row.text for row in outcome.evidence)
    assert lowered == (limit == "1000.0")  # then the limit is put below the gradients


def test_a_line_that_ran_before_a_later_one_raised_was_reached(pool: Pool) -> None:
    program = """
    import torch

    def train(model, loader, opt):
        for x, y in loader:
            out = torch.nn.functional.softmax(x)  #!
            if opt is not None:
                raise LookupError("no labels here")
    """
    outcome = of_file(pool, program, Warns("dim"), "TL114")
    assert outcome.verdict is Verdict.CONFIRMED, outcome


def test_a_line_that_only_raised_is_not_refuted(pool: Pool) -> None:
    program = """
    import torch

    for width in (3, 4):
        try:
            torch.nn.functional.softmax(torch.ones(2).view(width))  #!
        except RuntimeError:
            pass
    """
    outcome = of_file(pool, program, Warns("dim"), "TL114")
    assert outcome.verdict is Verdict.CANNOT_TELL, outcome


@pytest.mark.parametrize(
    ("ending", "reason"),
    [
        ("raise SystemExit(1)", "SystemExit"),
        ("open('/etc/torchlint-must-not-exist', 'w')", "write /etc/torchlint-must-not-exist"),
        ("raise MemoryError('too much')", "MemoryError"),
        ("raise BaseException('of its own kind')", "BaseException: of its own kind"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    ],
)
def test_what_keeps_a_forward_from_the_line_is_said(pool: Pool, ending: str, reason: str) -> None:
    program = f"""
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self, width=4):
            super().__init__()
            self.fc = nn.Linear(width, width)

        def forward(self, x):
            {ending}
            return nn.functional.softmax(self.fc(x))  #!
    """
    outcome = of_file(pool, program, Warns("dim"), "TL114")
    assert outcome.verdict in (Verdict.NOT_REACHED, Verdict.CANNOT_TELL), outcome
    assert reason in outcome.why, outcome


def test_the_reason_of_an_error_is_told_where_its_first_line_says_nothing() -> None:
    error = ImportError("\nPillow is needed to do so.\nInstall it.\n")
    assert Run("", error=RuntimeError(f"`Net`: ImportError: {error}")).trouble == (
        "RuntimeError: `Net`: ImportError: Pillow is needed to do so.")
    assert Run("", error=error).trouble == "ImportError: Pillow is needed to do so."
    assert Run("", error=ValueError()).trouble == "ValueError"
