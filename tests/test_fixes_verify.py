"""`--fix --verify` and `--fix --interactive`: what runs, what is asked, what is taken back."""
from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from runtime_check.evidence import Outcome, Verdict
from runtime_check.verify import Trial, _judged
from torchlint import cli
from torchlint.claims import Claim, Raises, Warns
from torchlint.engine import roots
from torchlint.findings import Confidence, Edit, Finding, Fix, Safety, Severity, Span
from torchlint.results import Made, Proof, Report

TEXT = """\
import torch
from torch import nn

net = nn.Linear(2, 1)
loss = net(torch.ones(4, 2)).pow(2).mean()
print("loss", loss.data)
x = torch.zeros(3).double()
"""
FIXED = TEXT.replace("loss.data)", "loss.detach())").replace('zeros(3).double()', 'zeros(3, dtype=torch.double)')
SELECT = ("--no-cache", "--isolated", "--preview", "--select", "TL103,TL605")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a.py"
    path.write_text(TEXT)
    return path


def run(*words: str, typed: str | None = None) -> Result:
    return CliRunner().invoke(cli.main, [*SELECT, *words], input=typed)


# -- interactive -----------------------------------------------------------------------------


@pytest.mark.parametrize(("typed", "expected"), [
    ("y\ny\n", FIXED), ("a\n", FIXED), ("n\nn\n", TEXT), ("q\n", TEXT), ("", TEXT), ("?\n\ny\nq\n", None),
    ("n\ny\n", TEXT.replace('zeros(3).double()', 'zeros(3, dtype=torch.double)')),
])
def test_each_fix_is_asked_about(file: Path, typed: str, expected: str | None) -> None:
    result = run("a.py", "--fix", "--interactive", typed=typed)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    if expected is None:
        expected = TEXT.replace("loss.data)", "loss.detach())")
        assert result.stderr.count("y: make this fix") == 2
    assert file.read_text() == expected
    assert result.exit_code == int(expected != FIXED)
    assert "-print(\"loss\", loss.data)\n+print(\"loss\", loss.detach())\n" in result.stderr
    assert "Make this fix?" not in result.stdout


def test_the_patch_holds_what_was_chosen(file: Path) -> None:
    result = run("a.py", "--diff", "--interactive", typed="n\ny\n")
    assert file.read_text() == TEXT
    assert "+x = torch.zeros(3, dtype" in result.stdout and "detach" not in result.stdout


@pytest.mark.parametrize("option", ["--interactive", "--verify", "--unsafe-fixes"])
def test_options_about_fixes_need_one_that_fixes(file: Path, option: str) -> None:
    result = run("a.py", option)
    assert result.exit_code == 2 and f"{option} goes with --fix or --diff" in result.stderr


def test_no_questions_about_standard_input(file: Path) -> None:
    assert run("-", "--fix", "--interactive", typed=TEXT).exit_code == 2
    assert run("-", "--fix", "--verify", typed=TEXT).exit_code == 2


# -- verify ----------------------------------------------------------------------------------


def test_fixes_are_run_and_kept(file: Path) -> None:
    result = run("a.py", "--fix", "--verify", "--output-format", "json")
    assert result.exit_code == 0, result.output
    assert file.read_text() == FIXED
    rows = json.loads(result.stdout)["fixed"]
    assert [row["code"] for row in rows] == ["TL103", "TL605"]
    assert {row["verification"]["result"] for row in rows} == {"verified"}
    assert all("bit for bit the same" in row["verification"]["why"] for row in rows)


def test_a_fix_that_changes_results_is_taken_back(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchlint.commands import check

    def spoilt(self: object, source: object, named: bool = True) -> object:
        found = real(self, source, named)
        findings = [spoil(one) if one.code == "TL605" else one for one in found.findings]
        return check.Checked(tuple(findings), found.source)

    def spoil(finding: Finding) -> Finding:
        assert finding.fix is not None
        edits = (Edit(finding.span, "torch.ones(3)"),)
        return Finding(**{**vars(finding), "fix": Fix(Safety.SAFE, "Spoil it", edits)})

    real = check.Checker.source
    monkeypatch.setattr(check.Checker, "source", spoilt)
    result = run("a.py", "--fix", "--verify", "-j", "1")
    assert file.read_text() == TEXT.replace("loss.data)", "loss.detach())")
    assert "a.py:7:5: the fix of TL605 (create-then-move) was taken back: the results change" in result.stderr
    assert result.exit_code == 1 and "Fixed 1 finding (1 verified by running the code)" in result.stdout


CHAIN = """\
import torch
from torch.autograd import Variable

x = Variable(Variable(torch.ones(3)))
print(x.sum())
"""


def test_fixes_that_others_made_possible_are_run_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text(CHAIN)
    words = ("--no-cache", "--isolated", "--select", "TL905", "a.py", "--fix", "--verify", "--output-format", "json")
    result = CliRunner().invoke(cli.main, words)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "a.py").read_text() == "import torch\n\nx = torch.ones(3)\nprint(x.sum())\n"
    rows = json.loads(result.stdout)["fixed"]
    assert [row["verification"]["result"] for row in rows] == ["verified"] * 2
    assert all("bit for bit the same" in row["verification"]["why"] for row in rows)


def test_without_torch_one_line_says_so(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = run("a.py", "--fix", "--verify")
    assert result.exit_code == 2 and file.read_text() == TEXT
    assert result.stderr == "torchlint: error: --verify runs code and needs torch, which is not installed\n"


def judged(before: Verdict, after: Verdict | None = None, same: Verdict | None = None) -> Proof:
    from runtime_check.plan import Case

    finding = Finding("a.py", Span(1, 1, 1, 2), "TL999", "x", Severity.ERROR, Confidence.SURE, "m")
    cases = [Case(key, "a.py", "TL999", "x", Raises(), "", ()) for key in range(3)]
    trial = Trial(finding, cases[0], cases[1] if after else None, cases[2] if same else None)
    verdicts = (before, after, same)
    made = _judged(trial, {key: Outcome(verdict, "so") for key, verdict in enumerate(verdicts) if verdict})
    assert made.why
    return made.proof


def test_what_outcomes_mean() -> None:
    yes, no, unknown = Verdict.CONFIRMED, Verdict.REFUTED, Verdict.CANNOT_TELL
    assert judged(yes, no) is Proof.VERIFIED
    assert judged(yes, no, yes) is Proof.VERIFIED and judged(yes, no, unknown) is Proof.VERIFIED
    assert judged(yes, yes) is Proof.FAILED and judged(yes, no, no) is Proof.FAILED
    assert judged(yes, unknown) is Proof.UNVERIFIED
    assert judged(no, no) is Proof.UNVERIFIED and judged(unknown, no) is Proof.UNVERIFIED
    # A claim that both programs do the same is its own test.
    assert [judged(verdict) for verdict in (yes, no, unknown)] == [Proof.VERIFIED, Proof.FAILED, Proof.UNVERIFIED]


@pytest.mark.parametrize(("claim", "why", "proof"), [
    (Warns(), "torch warns: CUDA is not available", Proof.UNVERIFIED),  # a warning that was there all along
    (Warns(), "torch warns: deprecated", Proof.FAILED),
    (Raises(), "it raises another error", Proof.FAILED),
])
def test_a_warning_about_something_else_is_no_reason_to_take_a_fix_back(claim: Claim, why: str, proof: Proof) -> None:
    from runtime_check.plan import Case

    finding = Finding("a.py", Span(1, 1, 1, 2), "TL999", "x", Severity.ERROR, Confidence.SURE, "m")
    before, after = (Case(key, "a.py", "TL999", "x", claim, "", ()) for key in range(2))
    said = {0: "torch warns: deprecated", 1: why}
    made = _judged(Trial(finding, before, after, None),
                   {key: Outcome(Verdict.CONFIRMED, text) for key, text in said.items()})
    assert made.proof is proof and why in made.why


def test_a_rule_without_a_claim_cannot_be_verified(file: Path) -> None:
    from runtime_check.verify import verify

    finding = Finding("a.py", Span(1, 1, 1, 2), "TL001", "unused-suppression", Severity.ADVICE, Confidence.SURE, "m")
    (made,) = verify(Report(findings=(finding,)), [finding], roots=roots(["a.py"]))
    assert made == Made(finding, Proof.UNVERIFIED, "the rule makes no claim that running the code could test")
