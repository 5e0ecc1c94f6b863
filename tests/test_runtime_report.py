"""What readers see of results, and what must not change them: forks, infinities, other scripts' modules."""

from __future__ import annotations

import builtins
import json
import math
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("torch")

import torch

from runtime_check.elsewhere import place_of
from runtime_check.evidence import Evidence, Outcome, Verdict
from runtime_check.extract import Namespace
from runtime_check.main import status
from runtime_check.probes.equivalent import random_state
from runtime_check.probes.values import compare
from runtime_check.reach import Tried, section
from runtime_check.report.json import to_dict
from runtime_check.report.text import block, total
from runtime_check.results import Confirmation, Result
from torchlint import __main__
from torchlint.cli import main
from torchlint.findings import Confidence, Finding, Severity, Span


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)


def shown(verdict: Verdict, claim: str, *rows: Evidence) -> str:
    """A result as text."""
    finding = Finding("a.py", Span(1, 1, 1, 2), "TL102", "x", Severity.ADVICE, Confidence.SURE, "message")
    return block(Result(finding, Outcome(verdict, "a reason", rows), claim), colour=False)


def test_to_confirm_that_nothing_changes_is_good_news_in_words() -> None:
    assert "TL102 x: harmless, the fix changes no result\n" in shown(Verdict.CONFIRMED, "Equivalent")
    assert "TL102 x: the fix changes results\n" in shown(Verdict.REFUTED, "Equivalent")
    assert "TL102 x: cannot tell\n" in shown(Verdict.CANNOT_TELL, "Equivalent")
    assert "TL102 x: confirmed\n" in shown(Verdict.CONFIRMED, "NotRegistered")


def test_harmless_and_unclaimed_findings_are_counted_apart_and_fail_nothing() -> None:
    def one(verdict: Verdict, claim: str) -> Result:
        finding = Finding("a.py", Span(1, 1, 1, 2), "TL102", "x", Severity.ADVICE, Confidence.SURE, "message")
        return Result(finding, Outcome(verdict, "a reason"), claim)

    good, none = one(Verdict.CONFIRMED, "Equivalent"), one(Verdict.CANNOT_TELL, "")
    found = Confirmation((good, none))
    line = total(found)
    assert "0 confirmed, 0 refuted, 0 not reached, 0 cannot tell, 1 harmless, 1 without a claim" in line
    assert "TL102 x: no claim\n" in block(none, colour=False)
    assert status(found, ("confirmed",)) == 0 and status(found, ("cannot-tell",)) == 0
    assert status(Confirmation((one(Verdict.CANNOT_TELL, "NotRegistered"),)), ("cannot-tell",)) == 1
    assert status(Confirmation((one(Verdict.NOT_REACHED, "NotRegistered"),)), ("cannot-tell",)) == 1
    assert status(Confirmation((good, one(Verdict.CONFIRMED, "NotRegistered"))), ("confirmed",)) == 1
    summary = to_dict(found)["summary"]
    assert {key: value for key, value in summary.items() if key != "seconds"} == {
        "confirmed": 0, "refuted": 0, "not-reached": 0, "cannot-tell": 0, "harmless": 1, "no_claim": 1,
    }


def test_places_in_other_files_start_from_the_project() -> None:
    roots = ["/home/me/project/pkg", "/home/me/project"]
    assert place_of("/home/me/project/tests/test_net.py", roots) == "tests/test_net.py"
    assert place_of("/elsewhere/run.py", roots) == "run.py"


def test_one_of_a_kind_is_singular() -> None:
    tried = [Tried("modules", "net.py", "Net", Outcome(Verdict.CONFIRMED, "ran"))]
    assert section("modules", tried).startswith("1 Module class: 1 ran forward (100%)")
    assert section("modules", tried * 2).startswith("2 Module classes: 2 ran forward")


def test_the_random_state_is_read_without_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    def numpy(tensor: torch.Tensor) -> None:
        raise RuntimeError("Numpy is not available")

    monkeypatch.setattr(torch.Tensor, "numpy", numpy)
    states: list[int] = []
    for seed in (1, 1, 2):
        with random_state(states):
            torch.manual_seed(seed)
    assert states[0] == states[1] != states[2]


def test_a_number_is_shown_once_with_all_that_it_is_compared_with() -> None:
    rows = [Evidence("strays", "16", "registered", "4"), Evidence("other", "1", "of", "2"),
            Evidence("strays", "16", "with the fix", "0"), Evidence("strays", "16", "with the fix", "0")]
    text = shown(Verdict.CONFIRMED, "NotRegistered", *rows)
    assert text.count("strays") == 1 and "strays: 16 (registered: 4; with the fix: 0)" in text
    assert "other: 1 (of: 2)" in text


@pytest.mark.parametrize(("one", "other", "said"), [
    ([1.0, math.inf], [1.0, 2.0], "1 of 2 not finite, 1 inf"),
    ([1.0, math.inf], [1.0, -math.inf], "1 of 2 not finite, 1 inf"),
    ([1.0, math.nan], [1.0, math.inf], "1 of 2 not finite, 1 NaN"),
    ([-math.inf], [3.0], "-inf"),
])
def test_what_is_not_finite_is_told_apart(one: list[float], other: list[float], said: str) -> None:
    gap = compare("x", torch.tensor(one), torch.tensor(other), exact=False)
    assert gap is not None and gap.one == said and gap.size == math.inf


def test_equal_infinities_are_no_difference() -> None:
    values = torch.tensor([math.inf, -math.inf, math.nan, 1.0])
    assert compare("x", values, values.clone() + 0, exact=True) is None
    assert compare("x", math.inf, math.inf, exact=False) is None


FORKS = """import os
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        if os.fork() == 0:
            END
        self.layers = [nn.Linear(width, width) for _ in range(3)]

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
"""


@pytest.mark.parametrize("end", ["raise SystemExit(0)", "raise ValueError('in the child')", "pass", "os._exit(0)"])
def test_a_process_that_the_code_forks_changes_no_verdict(end: str) -> None:
    Path("net.py").write_text(FORKS.replace("END", end))
    done = CliRunner().invoke(main, ["confirm", "--isolated", "net.py", "--select", "TL405", "--output-format", "json"])
    (row,) = json.loads(done.stdout)["results"]
    assert row["verdict"] == "confirmed", row


def test_scripts_find_the_modules_beside_them(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "models.py").write_text(f"class {name.title()}Net:\n    pass\n")
        (tmp_path / name / "train.py").write_text("from models import *\n")
    roots = (str(tmp_path / "one"), str(tmp_path / "two"))
    for name in ("one", "two"):
        space: Any = Namespace("from models import *\n", str(tmp_path / name / "train.py"), roots)
        assert space.resolve(f"{name.title()}Net").__name__ == f"{name.title()}Net"


def test_ctrl_c_while_loading_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    real = builtins.__import__

    def interrupted(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "torchlint.cli":
            raise KeyboardInterrupt
        return real(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "torchlint.cli")
    monkeypatch.setattr(builtins, "__import__", interrupted)
    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(SystemExit) as ended:
            __main__.run()
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.value.code == 130
    assert capsys.readouterr().err == "torchlint: error: interrupted\n"


def test_globals_can_be_looked_through_while_names_are_added() -> None:
    kept = "[k for k, v in globals().items() if isinstance(v, (int, str)) and k[0] != '_']"
    text = f"size = 4\nname = 'a'\nkeys = {kept}\n"
    assert {"size", "name"} <= set(Namespace(text, "options.py").resolve("keys"))  # type: ignore[call-overload]


def test_a_test_that_is_skipped_is_no_failure_of_the_check() -> None:
    text = FORKS.replace("if os.fork() == 0:\n            END", "pass")
    test = "\n\ndef test_net():\n    pytest.skip('no')\n    Net()\n"
    Path("net.py").write_text(text.replace("import os\n", "import pytest\n") + test)
    done = CliRunner().invoke(main, ["confirm", "--isolated", "net.py", "--select", "TL405", "--output-format", "json"])
    (row,) = json.loads(done.stdout)["results"]
    assert row["verdict"] == "confirmed", row


@pytest.mark.parametrize(("why", "reason"), [
    ("TypeError: to() received an invalid combination of arguments - got (Tensor, memory_format=None)", "arguments"),
    ("RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 16 bytes", "memory"),
    ("ImportError: TimmBackbone requires the timm library but it was not found", "a package that is not installed"),
    ("ImportError: 'radius_graph' requires 'pyg-lib>=0.6.0'", "a package that is not installed"),
])
def test_reasons_are_counted_by_what_they_say(why: str, reason: str) -> None:
    assert Tried("modules", "net.py", "Net", Outcome(Verdict.CANNOT_TELL, why)).reason == reason
