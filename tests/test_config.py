"""[tool.torchlint] in pyproject.toml, and which rules a selection turns on."""
from __future__ import annotations

import dataclasses

import pytest
from fake_rules import CPU, CUDA, ITEM, OLD, RULES

from torchlint.builtin import BUILTIN, every_rule
from torchlint.config import ConfigError, Options, load
from torchlint.rule import Rule
from torchlint.select import applies, configured, find_rule, select

WHOLE = """
[tool.torchlint]
select = ["TL9", "TL0"]
extend-select = ["cuda-call"]
ignore = ["TL001"]
exclude = ["/vendored/", "*_pb2.py"]
preview = true
torch-version = "2.6"
jobs = 3

[tool.torchlint.per-file-ignores]
"tests/" = ["TL9"]
"*.gen.py" = ["item-call", "TL911"]
"""


def test_every_key_is_read(tmp_path, monkeypatch) -> None:
    (tmp_path / "pyproject.toml").write_text(WHOLE)
    monkeypatch.chdir(tmp_path)
    assert load(["."]) == Options(
        select=("TL9", "TL0"),
        extend_select=("cuda-call",),
        ignore=("TL001",),
        per_file=(("tests/", ("TL9",)), ("*.gen.py", ("item-call", "TL911"))),
        exclude=("/vendored/", "*_pb2.py"),
        preview=True,
        torch_version="2.6",
        jobs=3,
        base=str(tmp_path),
        file=str(tmp_path / "pyproject.toml"),
    )


def test_the_nearest_table_above_all_paths_counts(tmp_path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "pyproject.toml").write_text("[tool.torchlint]\njobs = 1\n")
    for folder, text in {"a": "[tool.torchlint]\njobs = 2\n", "a/b": "[tool.ruff]\n", "c": ""}.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "pyproject.toml").write_text(text)
    (tmp_path / "a/b/x.py").write_text("")
    assert load([tmp_path / "a/b/x.py"]).jobs == 2  # the table nearer to it has no [tool.torchlint]
    assert load([tmp_path / "a/b", tmp_path / "c"]).jobs == 1
    assert load([tmp_path / "a/b"], isolated=True).jobs == 0


def test_the_search_ends_at_the_root_of_the_repository(tmp_path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.torchlint]\njobs = 1\n")
    (tmp_path / "repo/.git").mkdir(parents=True)
    assert load([tmp_path / "repo"]).jobs == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tool.torchlint]\nselekt = []", "tool.torchlint.selekt: unknown key; did you mean 'select'?"),
        ("[tool.torchlint]\nselect = 'TL1'", "tool.torchlint.select: must be a list of strings, not 'TL1'"),
        ("[tool.torchlint]\nignore = ['a', 1]", "tool.torchlint.ignore: must be a list of strings, has 1"),
        ("[tool.torchlint]\npreview = 1", "tool.torchlint.preview: must be true or false, not 1"),
        ("[tool.torchlint]\njobs = 0", "tool.torchlint.jobs: must be a whole number of at least 1, not 0"),
        ("[tool.torchlint]\njobs = true", "jobs: must be a whole number of at least 1, not true"),
        ("[tool.torchlint]\ntorch-version = 2.6", 'torch-version: must be a version such as "2.6", not 2.6'),
        ("[tool.torchlint]\ntorch-version = 'new'", "torch-version: must be a version such as"),
        ("[tool.torchlint]\nexclude = ['!']", "tool.torchlint.exclude: '!' is not a gitignore pattern"),
        ("[tool.torchlint]\nper-file-ignores = ['TL1']", "per-file-ignores: must be a table of"),
        ("[tool.torchlint.per-file-ignores]\n'a.py' = 'TL1'", "'a.py' must be a list of strings, not 'TL1'"),
        ("[tool]\ntorchlint = 3", "tool.torchlint: must be a table, not 3"),
        ("[tool.torchlint\n", "pyproject.toml: "),
        ("\x00", "pyproject.toml: "),
    ],
)
def test_a_fault_is_one_line_that_names_file_and_key(tmp_path, monkeypatch, text: str, message: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        load(["."])
    said = str(caught.value)
    assert said.startswith("pyproject.toml: ")
    assert message in said
    assert "\n" not in said


def test_a_command_line_adds_to_the_file_unless_it_selects() -> None:
    file = Options(select=("TL1",), extend_select=("TL2",), ignore=("TL101",), preview=True, jobs=4)
    assert file.changed(extend_select=("TL3",), ignore=("TL201",)) == dataclasses.replace(
        file, extend_select=("TL2", "TL3"), ignore=("TL101", "TL201")
    )
    assert file.changed(select=("TL4",), jobs=1) == Options(select=("TL4",), preview=True, jobs=1)


# -- selection ----------------------------------------------------------------------------------


def codes(known: tuple[Rule, ...] = RULES, **options: object) -> list[str]:
    chosen = select(Options(**options), known)  # type: ignore[arg-type]
    return [rule.meta.code for rule in chosen.rules]


TOOL = ["TL000", "TL001", "TL002"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [*TOOL, "TL901"]),
        ({"preview": True}, [*TOOL, "TL901", "TL902"]),
        ({"select": ("TL901",)}, ["TL000", "TL901"]),
        ({"select": ("item-call",)}, ["TL000", "TL901"]),
        ({"select": ("tor999",)}, ["TL000", "TL901"]),
        ({"select": ("TOR",)}, ["TL000", "TL901"]),
        ({"select": ("TL9",)}, ["TL000", "TL901"]),  # not the opt-in rule, not the preview rule
        ({"select": ("TL9",), "preview": True}, ["TL000", "TL901", "TL902"]),
        ({"select": ("ALL",)}, [*TOOL, "TL901", "TL911"]),
        ({"select": ("ALL",), "preview": True}, [*TOOL, "TL901", "TL902", "TL911"]),
        ({"select": ("TL911",)}, ["TL000", "TL911"]),
        ({"select": ("TL902",)}, ["TL000"]),
        ({"select": ("TL0",)}, TOOL),
        ({"extend_select": ("cuda-call",)}, [*TOOL, "TL901", "TL911"]),
        ({"ignore": ("TL901",)}, TOOL),
        ({"ignore": ("ALL",)}, []),
        ({"ignore": ("TL000",)}, ["TL001", "TL002", "TL901"]),
        ({"select": ("TL901",), "ignore": ("TL9",)}, ["TL000", "TL901"]),  # the more exact one wins
        ({"select": ("TL9",), "ignore": ("TL901",)}, ["TL000"]),
        ({"select": ("TL9",), "ignore": ("TL9",)}, ["TL000"]),
        ({"select": ("ALL",), "ignore": ("TL9",)}, TOOL),
    ],
)
def test_selection(options: dict[str, object], expected: list[str]) -> None:
    assert codes(**options) == expected


def test_a_preview_rule_selected_without_preview_is_noted() -> None:
    assert select(Options(select=("cpu-call",)), RULES).notes == (
        "TL902 (cpu-call) is a preview rule: not run without --preview",)
    assert not select(Options(select=("TL9",)), RULES).notes
    assert select(Options(select=("TL9", "all")), RULES).notes == ("1 preview rule is left out; --preview adds it",)
    assert not select(Options(select=("ALL",), preview=True), RULES).notes


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("TL91x", "unknown rule 'TL91x'; did you mean 'TL911'?"),
        ("item-cal", "unknown rule 'item-cal'; did you mean 'item-call'?"),
        ("TL999", "unknown rule 'TL999'"),
        ("xyz", "unknown rule 'xyz'"),
    ],
)
def test_an_unknown_selector_is_refused_with_a_suggestion(word: str, message: str) -> None:
    for options in (Options(select=(word,)), Options(ignore=(word,)), Options(per_file=(("a.py", (word,)),))):
        with pytest.raises(ConfigError) as caught:
            select(options, RULES)
        assert str(caught.value).startswith(message)


def test_an_unknown_rule_in_the_file_names_the_file(tmp_path, monkeypatch) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.torchlint]\nignore = ['TL999']\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"pyproject\.toml: tool\.torchlint\.ignore: unknown rule 'TL999'"):
        configured(["."], RULES)


def test_rules_are_off_by_file(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = Options(per_file=(("tests/", ("TL9",)), ("/a.py", ("TL001",))), base=str(tmp_path))
    chosen = select(options, RULES)
    assert chosen.active("src/x.py") == chosen.codes == {*TOOL, "TL901"}
    assert chosen.active("tests/deep/x.py") == {*TOOL}
    assert chosen.active("a.py") == {"TL000", "TL002", "TL901"}
    assert chosen.active("<stdin>") == chosen.active("../a.py") == chosen.codes


def test_rules_for_other_versions_of_torch_are_off() -> None:
    known = (*BUILTIN, OLD)
    assert codes(known) == [*TOOL, "TL912"]
    assert codes(known, torch_version="1.13.1") == [*TOOL, "TL912"]
    assert codes(known, torch_version="2.0") == TOOL


@pytest.mark.parametrize(
    ("versions", "torch", "expected"),
    [("<2.6", "2.5.1", True), ("<2.6", "2.6.0", False), (">=2.0,<2.4", "2.4", False), ("", "2.0", True),
     ("==2.1", "2.1.0", True), ("<=2.1", "2.1.1", False), (">1.9", "1.10", True), ("!=2.0", "2.0", False),
     ("<2", "", True)],
)
def test_versions(versions: str, torch: str, expected: bool) -> None:
    assert applies(versions, torch) is expected


def test_find_rule() -> None:
    assert find_rule("TOR999", RULES) == [ITEM]
    assert find_rule("Cpu-Call", RULES) == [CPU]
    assert find_rule("tl911", RULES) == [CUDA]
    with pytest.raises(ConfigError, match="unknown rule 'TL9'"):
        find_rule("TL9", RULES)


def test_the_real_rules_can_all_be_selected_by_code_and_name() -> None:
    known = every_rule()
    for rule in known:
        for word in (rule.meta.code, rule.meta.name):
            chosen = select(Options(select=(word,), preview=True), known)
            assert rule in chosen.rules
