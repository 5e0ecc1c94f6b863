"""The command line: options, formats, fixes, exit status. Rules are handed in as the context's object."""
from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from fake_rules import RULES

import torchlint
from torchlint.builtin import every_rule
from torchlint.cli import RESERVED, main
from torchlint.report import FORMATS
from torchlint.rule import LAYERS

BAD = "import torch\nx.item()\n"
GOOD = "import torch\nx.tolist()\n"


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch) -> None:
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)


def write(**files: str | bytes) -> None:
    for name, content in files.items():
        path = Path(name.replace("__", "/").replace("_py", ".py").replace("_toml", ".toml"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def run(*args: str, stdin: str | bytes | None = None, real: bool = False) -> Result:
    return CliRunner().invoke(main, list(args), input=stdin, obj=None if real else RULES)


def concise(*args: str, **how: object) -> tuple[int, list[str]]:
    """Exit status, and place and code of each line."""
    result = run("--output-format", "concise", *args, **how)  # type: ignore[arg-type]
    return result.exit_code, [" ".join(line.split()[:2]) for line in result.stdout.splitlines()]


# -- exit status --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "status"),
    [
        (("good.py",), 0),
        (("bad.py",), 1),
        (("broken.py",), 1),
        ((".",), 1),
        (("bad.py", "--exit-zero"), 0),
        (("bad.py", "--ignore", "TL901"), 0),
        (("gone.py",), 2),
        (("bad.py", "gone.py"), 2),
        (("bad.py", "gone.py", "--exit-zero"), 2),
        ((), 2),
        (("bad.py", "--select", "TL77"), 2),
        (("bad.py", "--nonsense"), 2),
        (("bad.py", "-j", "0"), 2),
        (("bad.py", "--output-format", "xml"), 2),
        (("bad.py", "-"), 2),
        (("bad.py", "--stdin-filename", "x.py"), 2),
        (("bad.py", "--output-file", "no/such/folder.txt"), 2),
        (("bad.py", "--output-file", "folder"), 2),
        (("bad.py", "--statistics", "--output-format", "json"), 2),
        (("bad.py", "--fix"), 0),
        (("both.py", "--fix"), 1),
        (("bad.py", "--diff"), 1),
        (("bad.py", "--diff", "--exit-zero"), 0),
        (("good.py", "--diff"), 0),
        (("--version",), 0),
        (("--help",), 0),
    ],
)
def test_exit_status(args: tuple[str, ...], status: int) -> None:
    write(good_py=GOOD, bad_py=BAD, broken_py="import torch\nx = = 1\n")
    write(both_py=BAD + "y = 1  # noqa: TL998\n", folder__x_txt="")
    result = run(*args)
    assert result.exit_code == status, result.output
    if status == 2:
        assert result.stderr.startswith("torchlint: error: ")
        assert result.stderr.count("\n") == 1
    else:
        assert result.stderr == ""


def test_a_missing_path_does_not_keep_the_others_from_being_checked() -> None:
    write(bad_py=BAD)
    result = run("gone", "bad.py", "--output-format", "concise")
    assert result.stderr == "torchlint: error: gone: no such file or directory\n"
    assert result.stdout.startswith("bad.py:2:1: TL901")


def test_a_fault_of_torchlint_is_one_line_and_a_traceback_only_if_asked_for(monkeypatch) -> None:
    def broken(*args: object, **named: object) -> None:
        raise RuntimeError("some\nthing")

    monkeypatch.setattr("torchlint.commands.check.lint_paths", broken)
    result = run(".")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "torchlint: error: this is a fault of torchlint, please report it: RuntimeError: some thing\n")
    assert "Traceback" in run(".", "--verbose").stderr


def test_an_interrupt_is_one_line(monkeypatch) -> None:
    def interrupted(*args: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("torchlint.commands.check.lint_paths", interrupted)
    result = run(".")
    assert result.exit_code == 130
    assert result.stderr.strip() == "torchlint: error: interrupted"


# -- selection and configuration ----------------------------------------------------------------


ALL_CALLS = "import torch\nx.item()\nx.cpu()\nx.cuda()\n"


@pytest.mark.parametrize(
    ("args", "lines"),
    [
        ((), [2]),
        (("--preview",), [2, 3]),
        (("--select", "ALL"), [2, 4]),
        (("--select", "ALL", "--preview"), [2, 3, 4]),
        (("--select", "cuda-call,TOR999"), [2, 4]),
        (("--select", "cuda-call", "--select", "TL901"), [2, 4]),
        (("--extend-select", "TL911"), [2, 4]),
        (("--select", "ALL", "--ignore", "TL9"), []),
        (("--no-cache", "--isolated"), [2]),
    ],
)
def test_selecting(args: tuple[str, ...], lines: list[int]) -> None:
    write(a_py=ALL_CALLS)
    _, found = concise("a.py", *args)
    assert [int(line.split(":")[1]) for line in found] == lines


def test_a_preview_rule_without_preview_is_a_warning() -> None:
    write(a_py=ALL_CALLS)
    result = run("a.py", "--select", "TL902")
    assert result.exit_code == 0
    assert result.stderr == "torchlint: warning: TL902 (cpu-call) is a preview rule: not run without --preview\n"
    assert run("a.py", "--select", "TL902", "--quiet").stderr == ""


def test_the_configuration_counts_unless_isolated_and_the_command_line_wins() -> None:
    write(pyproject_toml="[tool.torchlint]\nselect = ['cuda-call']\nexclude = ['/old/']\n"
                         "[tool.torchlint.per-file-ignores]\n'b.py' = ['TL9']\n")
    write(a_py=ALL_CALLS, b_py=ALL_CALLS, old__c_py=ALL_CALLS)
    assert concise(".") == (1, ["a.py:4:1: TL911"])
    assert concise(".", "--select", "TL901") == (1, ["a.py:2:1: TL901"])
    assert concise(".", "--exclude", "a.py") == (0, [])
    assert concise(".", "--isolated") == (1, ["a.py:2:1: TL901", "b.py:2:1: TL901", "old/c.py:2:1: TL901"])


def test_a_broken_configuration_is_one_line() -> None:
    write(pyproject_toml="[tool.torchlint]\nselekt = []\n", a_py=BAD)
    result = run("a.py")
    assert result.exit_code == 2
    assert result.stderr == (
        "torchlint: error: pyproject.toml: tool.torchlint.selekt: unknown key; did you mean 'select'?\n")
    assert run("a.py", "--isolated").exit_code == 1


def test_paths_in_reports_are_relative_to_the_working_directory(monkeypatch, tmp_path) -> None:
    write(pkg__a_py=BAD)
    assert concise(str(tmp_path / "pkg" / "a.py"))[1] == ["pkg/a.py:2:1: TL901"]
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert concise(str(tmp_path / "pkg"))[1] == ["../pkg/a.py:2:1: TL901"]


def test_no_python_files_is_a_warning() -> None:
    Path("empty").mkdir()
    result = run("empty")
    assert (result.exit_code, result.stderr) == (0, "torchlint: warning: no Python files here\n")


# -- output -------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_goes_to_standard_output_or_the_same_to_a_file(form: str) -> None:
    write(a_py=BAD, b_py="x = = 1\n")
    result = run(".", "b.py", "--output-format", form)
    assert result.exit_code == 1
    assert "TL901" in result.stdout and "TL000" in result.stdout
    to_file = run(".", "b.py", "--output-format", form, "--output-file", "report")
    assert to_file.stdout == ""
    assert timeless(Path("report").read_text("utf-8")) == timeless(result.stdout)


def timeless(text: str) -> list[str]:
    """The lines of a report that do not say how long the run took."""
    return [line for line in text.splitlines() if "seconds" not in line and "time=" not in line]



def test_the_output_file_is_replaced_and_keeps_its_mode() -> None:
    write(a_py=BAD, report="old\n" * 1000)
    Path("report").chmod(0o640)
    assert run("a.py", "--output-file", "report").exit_code == 1
    assert "old" not in Path("report").read_text()
    assert Path("report").stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in Path().iterdir()) == [".git", "a.py", "report"]


def test_json_has_the_fields_that_scripts_rely_on() -> None:
    write(a_py="import torch\ny = 'é', x.item()\n")
    data = json.loads(run("a.py", "gone.py", "--output-format", "json").stdout)
    assert (data["version"], data["torchlint"]) == (1, torchlint.__version__)
    assert data["errors"] == [{"path": "gone.py", "message": "no such file or directory"}]
    (finding,) = data["findings"]
    fingerprint = finding.pop("fingerprint")
    assert len(fingerprint) >= 16
    assert finding == {
        "path": "a.py", "line": 2, "column": 10, "end_line": 2, "end_column": 18, "cell": None,
        "code": "TL901", "name": "item-call", "severity": "warning", "confidence": "sure",
        "message": "`.item()` is called", "url": "https://torchlint.readthedocs.io/en/latest/rules/item-call/",
        "fix": {"safety": "safe", "title": "Call `.tolist()`", "edits": [
            {"line": 2, "column": 10, "end_line": 2, "end_column": 18, "text": "x.tolist()"}]},
    }


def test_statistics_count_by_rule() -> None:
    write(a_py=BAD + "x.item()\nx.cpu()\n")
    result = run("a.py", "--statistics", "--preview")
    assert (result.exit_code, result.stdout) == (1, "2  TL901  item-call\n1  TL902  cpu-call\n")


def test_quiet_prints_findings_only() -> None:
    write(a_py=BAD, good_py=GOOD)
    assert run("good.py").stdout == "Nothing found in 1 file.\n"
    assert run("good.py", "--quiet").stdout == ""
    loud, quiet = run("a.py").stdout, run("a.py", "-q").stdout
    assert loud.startswith(quiet.rstrip("\n")) and "in 1 of 1 file" not in quiet


# -- standard input -----------------------------------------------------------------------------


@pytest.mark.parametrize("args", [("-",), ("--stdin-filename", "pkg/x.py"), ("-", "--stdin-filename", "pkg/x.py")])
def test_standard_input_is_checked(args: tuple[str, ...]) -> None:
    name = "pkg/x.py" if len(args) > 1 else "<stdin>"
    assert concise(*args, stdin=BAD) == (1, [f"{name}:2:1: TL901"])
    assert concise(*args, stdin=GOOD) == (0, [])


def test_standard_input_follows_the_configuration_of_its_name() -> None:
    write(pyproject_toml="[tool.torchlint.per-file-ignores]\n'pkg/' = ['TL9']\n")
    assert concise("-", stdin=BAD)[0] == 1
    assert concise("--stdin-filename", "pkg/x.py", stdin=BAD) == (0, [])


def test_standard_input_that_cannot_be_decoded() -> None:
    result = run("-", "--output-format", "concise", stdin=b"import torch\n\xff\n")
    assert result.exit_code == 1
    assert "TL000 unchecked-file: line 2: byte 0xff is not valid utf-8" in result.stdout


@pytest.mark.parametrize("data", [BAD.encode(), BAD.replace("\n", "\r\n").encode(), b"\xef\xbb\xbf" + BAD.encode(),
                                  b"# coding: latin-1\nimport torch\ny = '\xe9', x.item()"])
def test_fixing_standard_input_prints_the_fixed_bytes(data: bytes) -> None:
    result = run("-", "--fix", stdin=data)
    assert result.exit_code == 0
    assert result.stdout_bytes == data.replace(b"x.item()", b"x.tolist()")
    assert "Fixed 1 finding" in result.stderr


@pytest.mark.parametrize("data", [GOOD.encode(), b"import torch\r\n\xff", b"x = = 1\r", b""])
def test_fixing_standard_input_gives_back_what_it_cannot_fix(data: bytes) -> None:
    assert run("-", "--fix", stdin=data).stdout_bytes == data


def test_the_report_of_fixed_input_goes_to_a_file_if_asked_for() -> None:
    result = run("-", "--fix", "--output-format", "json", "--output-file", "report.json", stdin=BAD)
    assert (result.stdout, result.stderr) == (GOOD, "")
    assert json.loads(Path("report.json").read_text())["summary"]["fixed"] == 1


# -- fixes --------------------------------------------------------------------------------------


def test_fix_changes_files_and_reports_what_is_left() -> None:
    write(a_py=BAD.replace("\n", "\r\n"), b_py=BAD + "x.cpu()\n", c_py=GOOD)
    status, lines = concise(".", "--fix", "--preview")
    assert (status, lines) == (1, ["b.py:3:1: TL902"])
    assert Path("a.py").read_bytes() == GOOD.replace("\n", "\r\n").encode()
    assert Path("b.py").read_text() == GOOD + "x.cpu()\n"
    assert run(".", "--fix").stdout == "Nothing found in 3 files.\n"


def test_an_unused_suppression_is_fixed() -> None:
    write(a_py="import torch\nx = 1  # noqa: TL901, F401\ny = 1  # torchlint: ignore[item-call]\n")
    assert run("a.py", "--fix").exit_code == 0
    assert Path("a.py").read_text() == "import torch\nx = 1  # noqa: F401\ny = 1\n"


def test_diff_prints_a_patch_and_nothing_else() -> None:
    write(a_py=BAD + "x.cpu()\n", b_py="x = = 1\n")
    result = run("a.py", "b.py", "--diff", "--preview")
    assert result.exit_code == 1
    assert result.stdout == (
        "--- a/a.py\n+++ b/a.py\n@@ -1,3 +1,3 @@\n import torch\n-x.item()\n+x.tolist()\n x.cpu()\n")
    assert Path("a.py").read_text() == BAD + "x.cpu()\n"
    assert run("a.py", "--diff", "--fix").stdout == result.stdout


def test_diff_of_standard_input() -> None:
    result = run("--stdin-filename", "a.py", "--diff", stdin=BAD)
    assert result.exit_code == 1
    assert result.stdout.startswith("--- a/a.py\n+++ b/a.py\n")


def test_a_fix_that_cannot_be_written_is_an_error_and_the_finding_stays(monkeypatch) -> None:
    write(a_py=BAD, b_py=BAD)

    def refusing(changes):
        from torchlint.fixes.write import Failure

        return [Failure(change.path, "permission denied") for change in changes if change.path == "a.py"]

    monkeypatch.setattr("torchlint.fixes.write.write_files", refusing)
    result = run(".", "--fix", "--output-format", "concise")
    assert result.exit_code == 2
    assert result.stderr == "torchlint: error: a.py: not fixed: permission denied\n"
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["a.py:2:1:"]


# -- other commands -----------------------------------------------------------------------------


def test_rule_prints_the_page_of_a_rule_by_code_name_or_alias() -> None:
    pages = {run("rule", word).stdout for word in ("TL901", "item-call", "tor999")}
    assert len(pages) == 1
    assert pages.pop().startswith("# TL901 item-call\n")


def test_rule_all_lists_every_rule() -> None:
    result = run("rule", "--all", real=True)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert [line.split()[:2] for line in lines] == [[rule.meta.code, rule.meta.name] for rule in every_rule()]


def test_rules_as_json() -> None:
    data = json.loads(run("rule", "--all", "--output-format", "json", real=True).stdout)
    assert {rule["code"] for rule in data["rules"]} == {rule.meta.code for rule in every_rule()}
    one = json.loads(run("rule", "cpu-call", "--output-format", "json").stdout)["rules"]
    assert [(rule["code"], rule["preview"], rule["default"], rule["fix"]) for rule in one] == [
        ("TL902", True, True, None)]


@pytest.mark.parametrize(("args", "message"), [
    (("rule", "TL7777"), "unknown rule 'TL7777'"),
    (("rule", "item-cal"), "unknown rule 'item-cal'; did you mean 'item-call'?"),
    (("rule",), "name rules by code or name, or give --all"),
    (("rule", "TL901", "--all"), "name rules by code or name, or give --all"),
    (("new", "some-rule", "--layer", LAYERS[0]), "run this in a clone of torchlint"),
    (("new", "some-rule"), "Missing option '--layer'"),
    (("confirm",), "Missing argument 'PATHS...'"),
    (("confirm", "a.py", "--select", "TL77"), "unknown rule 'TL77'"),
    (("docs", "file.txt"), "is a file"),
    *(((name,), "is not part of this version") for name in RESERVED),
])
def test_commands_refuse_what_they_cannot_do(args: tuple[str, ...], message: str) -> None:
    write(**{"file.txt": ""}, a_py=BAD)
    result = run(*args)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.startswith("torchlint: error: ") and result.stderr.count("\n") == 1


def test_docs_writes_a_page_for_every_rule() -> None:
    result = run("docs", "site/rules", real=True)
    assert result.exit_code == 0
    names = {path.stem for path in Path("site/rules").glob("*.md")}
    assert names == {rule.meta.name for rule in every_rule()} | {"index"}


def test_help_names_options_and_commands() -> None:
    text = run("--help").stdout
    for word in ("--select", "--fix", "--stdin-filename", "--output-format", *main.commands):
        assert word in text
    for name in main.commands:
        assert f"Usage: torchlint {name} " in run(name, "--help").stdout


@pytest.mark.parametrize("name", [*main.commands, *RESERVED])
def test_a_path_named_like_a_command_can_be_checked(name: str) -> None:
    Path(name).mkdir()
    Path(name, "a.py").write_text(BAD)
    for args in ((f"./{name}",), ("--", name), ("-q", name)):
        result = run(*args)
        assert result.exit_code == 1
        assert result.stdout.startswith(f"{name}/a.py:2:1: TL901")


def test_named_files_are_excluded_on_demand() -> None:
    write(pyproject_toml="[tool.torchlint]\nselect = ['cuda-call']\nexclude = ['old/']\n", old__a_py=ALL_CALLS)
    assert concise("old/a.py") == (1, ["old/a.py:4:1: TL911"])
    assert concise("old/a.py", "--force-exclude") == (0, [])
    assert concise("old", "--force-exclude") == (0, [])
