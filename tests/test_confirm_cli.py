"""`torchlint confirm`: exit status, text, JSON, and what the options do."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

torch = pytest.importorskip("torch")

from runtime_check.evidence import cannot_tell  # noqa: E402
from runtime_check.remedies import next_step  # noqa: E402
from torchlint.cli import main  # noqa: E402

REAL = """import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.layers = [nn.Linear(width, width) for _ in range(3)]

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


raise SystemExit("this file must not be run as a whole")
"""

UNREACHED = """import torch


def train(model, thing):
    total = 0.0
    for x in thing.open().frobnicate("a")[7].rows:
        loss = model(x).sum()
        loss.backward()
        total += loss
    print(total)
"""

CLEAN = "import torch\n\nx = torch.ones(3)\n"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)


def confirm(*args: str) -> Result:
    return CliRunner().invoke(main, ["confirm", "--isolated", *args])


def results(*args: str) -> list[dict[str, Any]]:
    """The results of a run in JSON."""
    data = json.loads(confirm("--output-format", "json", *args).stdout)
    found: list[dict[str, Any]] = data["results"]
    return found


def write(name: str, text: str) -> str:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text)
    return name


def test_nothing_to_confirm_is_0_and_loads_no_torch() -> None:
    done = confirm(write("clean.py", CLEAN))
    assert done.exit_code == 0
    assert re.fullmatch(r"0 findings: 0 confirmed, 0 refuted, 0 not reached, 0 cannot tell in \d+\.\d s\n", done.stdout)


def test_a_confirmed_finding_is_1_with_numbers_and_how_it_was_run() -> None:
    done = confirm(write("net.py", REAL))
    assert done.exit_code == 1, done.output
    lines = done.stdout.splitlines()
    assert lines[0] == "net.py:8:9: TL405 modules-in-plain-container: confirmed"
    assert "are missing in parameters() and state_dict()" in lines[1]
    assert "tensors that the module does not know: 6 (registered: 0; with the fix: 0)" in done.stdout
    assert re.search(r"^    run: Net\(.*\d\.\d s$", done.stdout, re.M)
    assert "again: torchlint confirm net.py" in done.stdout
    assert re.search(rf"1 finding: 1 confirmed, .* \(torch {re.escape(torch.__version__)}, cpu\)", done.stdout)


def test_json_is_as_in_the_contract() -> None:
    done = confirm("--output-format", "json", write("net.py", REAL))
    data = json.loads(done.stdout)
    assert data["version"] == 1
    assert data["environment"]["torch"] == torch.__version__
    assert data["environment"].keys() == {"torch", "python", "platform", "device"}
    assert data["summary"]["confirmed"] == 1 and data["errors"] == []
    (row,) = data["results"]
    assert row["path"] == "net.py" and row["line"] == 8 and row["code"] == "TL405"
    assert row["verdict"] == "confirmed" and row["why"] and row["seconds"] > 0
    assert row["fix"]["edits"] and row["fingerprint"] and row["claim"] == "NotRegistered"
    assert all(e.keys() == {"label", "value", "against", "compared"} for e in row["evidence"]) and row["evidence"]


def test_what_repeats_a_result_repeats_it() -> None:
    write("net.py", REAL + "\n\nclass Other(nn.Module):\n    def __init__(self):\n        self.a = nn.Linear(2, 2)\n")
    both = results("net.py")
    assert len(both) == 2
    for row in both:
        words = row["repeat"].split()
        assert words[:2] == ["torchlint", "confirm"]
        (again,) = results(*words[2:])
        assert (again["line"], again["verdict"]) == (row["line"], row["verdict"])


def test_a_finding_that_is_not_reached_says_why_and_fails_only_if_asked_to() -> None:
    path = write("train.py", UNREACHED)
    (row,) = results(path, "--select", "TL201")
    assert row["verdict"] in ("not-reached", "cannot-tell") and row["why"]
    assert confirm(path, "--select", "TL201").exit_code == 0
    assert confirm(path, "--select", "TL201", "--fail-on", "cannot-tell").exit_code == 1
    assert confirm(path, "--select", "TL201", "--fail-on", "refuted").exit_code == 0


def test_never_fails_on_findings_if_so_asked() -> None:
    path = write("net.py", REAL)
    assert confirm(path, "--fail-on", "never").exit_code == 0
    assert confirm(path, "--fail-on", "refuted").exit_code == 0
    assert confirm(path, "--fail-on", "refuted", "--fail-on", "confirmed").exit_code == 1


def test_select_and_ignore_work_as_for_the_check() -> None:
    path = write("net.py", REAL)
    assert results(path, "--select", "TL2") == []
    assert results(path, "--ignore", "modules-in-plain-container") == []
    assert len(results(path, "--select", "TL4", "--no-cache", "--preview", "-j", "1")) == 1


def test_a_missing_path_is_2_and_the_rest_is_done() -> None:
    done = confirm("gone.py", write("net.py", REAL))
    assert done.exit_code == 2
    assert "gone.py" in done.stderr and "confirmed" in done.stdout


def test_a_file_with_a_syntax_error_is_named_with_line_and_reason_and_2() -> None:
    path = write("broken.py", "import torch\ndef f(:\n")
    (row,) = results(path)
    assert row["code"] == "TL000" and row["verdict"] == "cannot-tell" and row["repeat"] == ""
    done = confirm(path, write("net.py", REAL))
    assert done.exit_code == 2
    assert done.stderr == "torchlint: error: broken.py: line 2: syntax error: invalid syntax\n"
    assert "broken.py:2:7: TL000 unchecked-file: not checked\n    the file could not be checked: syntax" in done.stdout
    assert "TL405 modules-in-plain-container: confirmed" in done.stdout
    data = json.loads(confirm(path, "--output-format", "json").stdout)
    assert data["errors"] == [{"path": "broken.py", "message": "line 2: syntax error: invalid syntax"}]
    assert confirm(path, "net.py", "-k", "net.py").exit_code == 1  # it was not asked about


def test_a_keyword_that_matches_nothing_is_said_and_2() -> None:
    path = write("net.py", REAL)
    for more in ([], ["--reach"]):
        done = confirm(path, "-k", "no such", *more)
        assert done.exit_code == 2
        assert done.stderr.startswith("torchlint: error: -k no such matches nothing of what is there: net.py")
    assert confirm(write("clean.py", CLEAN), "-k", "no such").exit_code == 0  # there is nothing to choose from


def test_formats_for_other_tools_hold_what_fails_a_build() -> None:
    path, slow = write("net.py", REAL), write("train.py", UNREACHED)
    lines = confirm(path, slow, "--output-format", "github").stdout.splitlines()
    assert len(lines) == 1 and lines[0].startswith("::error file=net.py,line=8,col=9,")
    assert "`nn.ModuleList` (confirmed: Net.layers[0].weight and" in lines[0]
    both = confirm(path, slow, "--output-format", "github", "--fail-on", "confirmed", "--fail-on", "cannot-tell").stdout
    assert {line.partition(" file=")[2].partition(",")[0] for line in both.splitlines()} == {"net.py", "train.py"}
    (run,) = json.loads(confirm(path, "--output-format", "sarif").stdout)["runs"]
    assert [row["ruleId"] for row in run["results"]] == ["TL405"]
    assert 'failures="1"' in confirm(path, "--output-format", "junit").stdout
    assert len(json.loads(confirm(path, "--output-format", "gitlab").stdout)) == 1
    assert confirm(path, "--output-format", "github", "--fail-on", "never").stdout.splitlines() == lines
    assert confirm(path, "--reach", "--output-format", "github").exit_code == 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is there")
def test_a_device_that_is_not_there_is_one_line_and_2() -> None:
    done = confirm(write("net.py", REAL), "--device", "cuda")
    assert done.exit_code == 2
    assert done.stderr == "torchlint: error: --device cuda: torch finds no CUDA device here\n"
    assert (
        json.loads(confirm("net.py", "--device", "auto", "--output-format", "json").stdout)["environment"]["device"]
        == "cpu"
    )


def test_a_keyword_chooses_by_place_and_name() -> None:
    path = write("net.py", REAL)
    assert results(path, "-k", "net.py:9") == []
    assert len(results(path, "-k", "net.py:8:TL405")) == 1
    assert len(results(path, "-k", "PLAIN-container")) == 1


def test_the_time_for_all_may_be_limited() -> None:
    path = write("net.py", REAL)
    (row,) = results(path, "--max-seconds", "0.000001")
    assert row["verdict"] == "cannot-tell" and "--max-seconds" in row["why"]


def test_the_time_for_one_may_be_limited() -> None:
    slow = REAL.replace("super().__init__()", "super().__init__()\n        sum(range(10**12))")
    (row,) = results(write("net.py", slow), "--timeout", "1.5")
    assert row["verdict"] in ("cannot-tell", "not-reached")
    assert row["seconds"] < 5


def test_a_report_can_go_to_a_file() -> None:
    done = confirm(write("net.py", REAL), "--output-format", "json", "--output-file", "out.json")
    assert done.exit_code == 1 and done.stdout == ""
    assert json.loads(Path("out.json").read_text())["summary"]["confirmed"] == 1


def test_quiet_prints_results_only() -> None:
    done = confirm(write("net.py", REAL), "-q")
    assert "1 finding:" not in done.stdout and "confirmed" in done.stdout


def test_what_other_project_files_define_is_found() -> None:
    write("pkg/__init__.py", "")
    write("pkg/base.py", "from torch import nn\n\n\nclass Base(nn.Module):\n    width = 4\n")
    text = REAL.replace("from torch import nn", "from torch import nn\n\nfrom pkg.base import Base")
    text = text.replace("class Net(nn.Module)", "class Net(Base)").replace("width=4", "width=Base.width")
    write("pkg/net.py", text)
    (row,) = results("pkg/net.py", "--select", "TL405")
    assert row["verdict"] == "confirmed", row


def test_user_code_cannot_write_or_print_into_our_output(tmp_path: Path) -> None:
    noisy = REAL.replace(
        "super().__init__()",
        f"super().__init__()\n        print('noise')\n        open({str(tmp_path / 'mark')!r}, 'w')",
    )
    done = confirm("--output-format", "json", write("net.py", noisy))
    json.loads(done.stdout)
    assert "noise" not in done.output
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("options", [(), ("--reach",)])
def test_no_python_files_and_standard_input_are_told(options: tuple[str, ...]) -> None:
    Path("empty").mkdir()
    done = confirm("empty", *options)
    assert done.exit_code == 0 and done.stderr == "torchlint: warning: no Python files here\n"
    done = confirm("-", *options)
    assert done.exit_code == 2 and "cannot read standard input; write the code to a file first" in done.stderr


def test_what_could_not_be_told_ends_in_a_step_to_take() -> None:
    path = write("pkg/train.py", UNREACHED)
    write("pkg/__init__.py", "")
    (row,) = results(path, "--select", "TL201")
    assert row["next_step"] == (
        'mark a function that makes its arguments with @runtime_check.example_for("pkg.train:train")'
    )
    assert f"\n    next: {row['next_step']}\n    again: " in confirm(path, "--select", "TL201").stdout
    missing = UNREACHED.replace("import torch\n", "import torch\nfrom no_such_package import data\n", 1)
    (row,) = results(write("missing.py", missing.replace("thing.open()", "data.open()")), "--select", "TL201")
    assert row["next_step"] == "install no_such_package beside torchlint", row
    (row,) = results(write("net.py", REAL), "--select", "TL405")
    assert row["next_step"] is None
    reach = confirm("--reach", path, "-k", "reach-loop").stdout
    assert re.search(r"\n +next: mark a function .*example_for\(\"pkg.train:train\"\)", reach), reach


@pytest.mark.parametrize(("why", "step"), [
    ("the flagged code was never executed: it took too long", "--timeout 30"),
    ("no result within 10 s; raise --timeout to wait longer", "--timeout 30"),
    ("not run: the time given by --max-seconds was over", "raise --max-seconds, or leave it out"),
    ("`Net`: ModuleNotFoundError: No module named 'left.right'", "install left beside torchlint"),
    ("`Net`: ModuleNotFoundError: No module named 'src.right'", "mark a function that makes its arguments"),
    ("`Net`: ImportError: 'Net' requires 'pyg-lib>=0.6.0' (line 3 of a.py)", "install pyg-lib beside torchlint"),
    ("NameError: name 'PPO' is not defined", "define or import PPO: this code cannot run anywhere"),
    ("`Net.forward`: NotImplementedError:  (line 55 of base.py)", "leave it: it is abstract"),
    ("`F.apply`: AttributeError: '_OpNamespace' 'mine' object has no attribute 'roll'", "build the compiled part"),
    ("there is no corrected program to compare with", "`torchlint rule TL101` says what to look for"),
    ("torch itself says nothing about the line, which other releases may", "`torchlint rule TL101` says"),
    ("two runs of the flagged code from one seed give different gradients", "seed what is random"),
])
def test_each_reason_has_its_step(why: str, step: str) -> None:
    assert next_step(cannot_tell(why), "/a/src/net.py", "Net.forward", 10, "TL101").startswith(step)


@pytest.mark.parametrize("option", ["--timeout", "--max-seconds"])
@pytest.mark.parametrize("value", ["nan", "inf", "0"])
def test_a_time_that_is_none_is_2(option: str, value: str) -> None:
    done = confirm(write("net.py", REAL), option, value)
    assert done.exit_code == 2 and option in done.stderr


def test_a_pipe_beside_the_code_is_passed_over() -> None:
    os.mkfifo("pipe.py")
    assert [row["verdict"] for row in results(write("net.py", REAL))] == ["confirmed"]
