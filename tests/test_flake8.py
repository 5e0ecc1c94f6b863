"""The flake8 plugin: the same findings at the same places as the command line."""
from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from torchlint import __version__
from torchlint.rule import all_rules

UNKNOWN = "import torch\n\nx = 'é'  # torchlint: ignore[nothing]\n"  # a finding that needs no rule


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch) -> None:
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)


def flake8(*args: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "flake8", *args], capture_output=True, text=True, input=stdin,
                          timeout=120)


def torchlint(*args: str) -> list[str]:
    done = subprocess.run([sys.executable, "-m", "torchlint", *args, "--output-format", "json"],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode in (0, 1), done.stderr
    findings = json.loads(done.stdout)["findings"]
    return [f"./{f['path']}:{f['line']}:{f['column']}: {f['code']} {f['message']}" for f in findings]


def lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.stderr == ""
    return done.stdout.splitlines()


def write_examples() -> None:
    """Every rule's faulty examples, once as they are and once where columns and line ends are special."""
    for rule in all_rules():
        for number, example in enumerate(rule.examples):
            name = f"{rule.meta.name.replace('-', '_')}_{number}"
            Path(f"{name}.py").write_text(example.source, encoding="utf-8")
            body = "".join(f"    {line}" if line.strip() else line for line in example.source.splitlines(True))
            text = f"'''ü\n☃'''; word = 'é'\nif word:\n{body}"
            Path(f"{name}_deep.py").write_text(text, encoding="utf-8-sig", newline="\r\n")
    Path("unknown.py").write_text(UNKNOWN, encoding="utf-8")


def test_findings_are_those_of_the_command_line() -> None:
    write_examples()
    expected = torchlint(".", "--ignore", "TL001")
    found = lines(flake8("--select", "TL", "."))
    assert sorted(found) == sorted(expected)
    assert len(found) > len(all_rules())
    assert "./unknown.py:3:30: TL002 `nothing` is no code or name of a rule and silences nothing" in found


def test_nothing_has_to_be_configured_and_processes_change_nothing() -> None:
    write_examples()
    one = [line for line in lines(flake8("-j1", ".")) if " TL" in line]
    two = [line for line in lines(flake8("-j2", ".")) if " TL" in line]
    assert one == two == lines(flake8("--select", "TL", "."))


def test_version_and_options_are_registered() -> None:
    assert f"torchlint: {__version__}" in flake8("--version").stdout
    text = flake8("--help").stdout
    assert "--torchlint-select" in text and "--torchlint-preview" in text


def test_the_options_select_rules() -> None:
    Path("a.py").write_text(UNKNOWN)
    assert lines(flake8("--select", "TL", "--torchlint-select", "TL001", "a.py")) == []
    assert len(lines(flake8("--select", "TL", "--torchlint-select", "ALL", "--torchlint-preview", "a.py"))) == 1
    assert lines(flake8("--select", "TL", "--ignore", "TL002", "a.py")) == []
    assert lines(flake8("--select", "TL1", "a.py")) == []


def test_an_unknown_rule_ends_the_run_with_one_line() -> None:
    Path("a.py").write_text(UNKNOWN)
    done = flake8("--torchlint-select", "TL77", "a.py")
    assert done.returncode == 1
    assert done.stderr.startswith("torchlint: error: unknown rule 'TL77'") and done.stderr.count("\n") == 1


def test_the_configuration_counts() -> None:
    Path("sub").mkdir()
    for path in ("a.py", "sub/b.py"):
        Path(path).write_text(UNKNOWN)
    Path("pyproject.toml").write_text("[tool.torchlint]\nper-file-ignores = {'sub/' = ['TL002']}\n")
    assert [line.split(":")[0] for line in lines(flake8("--select", "TL", "."))] == ["./a.py"]
    Path("pyproject.toml").write_text("[tool.torchlint]\nignore = ['unknown-suppression']\n")
    assert lines(flake8("--select", "TL", ".")) == []


def test_a_broken_configuration_is_reported() -> None:
    Path("a.py").write_text(UNKNOWN)
    Path("pyproject.toml").write_text("[tool.torchlint]\nignores = []\n")
    done = flake8("--select", "TL", "a.py")
    assert done.returncode == 1
    assert "tool.torchlint.ignores: unknown key; did you mean 'ignore'?" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not all_rules(), reason="needs a rule")
def test_comments_silence_as_on_the_command_line() -> None:
    rule = all_rules()[0]
    example = rule.examples[0]
    source = example.source.splitlines()

    def found(comment: str, *args: str) -> int:
        commented = [f"{line}  {comment}" if number in example.flagged else line
                     for number, line in enumerate(source, 1)]
        Path("a.py").write_text("\n".join(commented) + "\n")
        return len(lines(flake8("--select", "TL", *args, "a.py")))

    count = len(example.flagged)
    assert found("") == count
    assert found(f"# torchlint: ignore[{rule.meta.name}]") == 0
    assert found(f"# noqa: {rule.meta.code}") == 0
    assert found(f"# noqa: F401, {rule.meta.code}") == 0
    assert found("# noqa") == 0
    assert found("# noqa: F401") == count
    assert found(f"# noqa: {rule.meta.code}", "--disable-noqa") == count


def test_a_noqa_that_silences_nothing_is_reported_as_on_the_command_line() -> None:
    Path("a.py").write_text("import torch\n\nx = 1  # noqa: TL002\ny = 1  # noqa: TL999\nz = 1  # noqa: TL101\n")
    found = [line.split()[1] for line in lines(flake8("--select", "TL", "a.py"))]
    assert found == ["TL002", "TL001"]
    assert len(torchlint("a.py")) == 2
    assert lines(flake8("--select", "TL", "--disable-noqa", "a.py")) == []


def test_standard_input() -> None:
    for args in (("-",), ("--stdin-display-name", "x/y.py", "-")):
        done = flake8("--select", "TL", *args, stdin=UNKNOWN)
        assert lines(done) == [
            f"{'stdin' if len(args) == 1 else 'x/y.py'}:3:30: TL002 `nothing` is no code or name of a rule "
            "and silences nothing"]


def test_the_installed_entry_point_is_what_flake8_loads() -> None:
    from importlib.metadata import entry_points

    (entry,) = [one for one in entry_points(group="flake8.extension") if one.name == "TL"]
    from torchlint.flake8_plugin import Plugin

    assert entry.load() is Plugin
    assert (Plugin.name, Plugin.version) == ("torchlint", __version__)


def test_what_the_configuration_excludes_is_passed_over() -> None:
    Path("pyproject.toml").write_text('[tool.torchlint]\nexclude = ["vendored/"]\n', encoding="utf-8")
    Path("vendored").mkdir()
    for name in ("own.py", "vendored/other.py"):
        Path(name).write_text(UNKNOWN, encoding="utf-8")
    found = lines(flake8("--select", "TL", "."))
    assert [line.partition(":")[0] for line in found] == ["./own.py"]
