"""`torchlint new`, tried in a copy of the package: the new rule's generated tests fail, then pass."""
from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from torchlint.new import HISTORY, NewRuleError, create
from torchlint.rule import LAYERS

ROOT = Path(__file__).parent.parent
CHECK = '''
def check(model: FileModel) -> Iterator[Hit]:
    """Sums that nobody keeps."""
    for call in model.nodes(ast.Call):
        if model.name_of(call.func) == "torch.sum" and isinstance(model.parent(call), ast.Expr):
            yield Hit(call, "the sum is computed and dropped: assign it, or remove the call")
'''


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A copy of the package and of what the generated tests need."""
    skip = shutil.ignore_patterns("__pycache__", "fuzz", "bench", "ecosystem")
    shutil.copytree(ROOT / "torchlint", tmp_path / "torchlint", ignore=skip)
    shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=skip)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def run(clone: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the clone, with the clone's package before the installed one."""
    return subprocess.run(
        [sys.executable, "-m", *words],
        cwd=clone,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(clone), "PYTHONDONTWRITEBYTECODE": "1"},
        timeout=300,
    )


def generated_tests(clone: Path, name: str) -> subprocess.CompletedProcess[str]:
    """The generated tests of one rule, and no others."""
    return run(clone, "pytest", "-p", "no:cacheprovider", "-rf", "tests/test_rules.py", "-k", name)


def test_a_new_rule_fails_its_tests_until_check_is_written(clone: Path):
    made = run(clone, "torchlint", "new", "lost-sum", "--layer", "tensor")
    assert made.returncode == 0, made.stderr
    path = clone / "torchlint" / "rules" / "tensor" / "lost_sum.py"
    assert str(path.relative_to(clone)) in made.stdout

    before = generated_tests(clone, "lost-sum")
    assert before.returncode == 1, before.stdout + before.stderr
    assert "FAILED tests/test_rules.py::test_bad_is_flagged[TL117-lost-sum-1]" in before.stdout
    assert "error" not in before.stdout.splitlines()[-1]

    text = path.read_text(encoding="utf-8")
    path.write_text(text[: text.index("\ndef check")] + CHECK, encoding="utf-8")
    after = generated_tests(clone, "lost-sum")
    assert after.returncode == 0, after.stdout + after.stderr
    assert "failed" not in after.stdout and " passed" in after.stdout

    shown = run(clone, "torchlint", "rule", "lost-sum")
    assert shown.returncode == 0 and shown.stdout.startswith("# TL117 lost-sum\n")


def test_a_new_rule_is_clean_code(clone: Path):
    made = create("lost-sum", "tensor", clone)
    done = run(clone, "ruff", "check", "--no-cache", str(made.path))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("layer", LAYERS)
def test_codes_come_from_the_hundred_of_the_layer(clone: Path, layer: str):
    first, second = create("aa-new-one", layer, clone), create("aa-new-two", layer, clone)
    assert first.code[:3] == second.code[:3] == f"TL{LAYERS.index(layer) + 1}"
    assert int(second.code[2:]) == int(first.code[2:]) + 1
    history = (clone / HISTORY).read_text(encoding="utf-8")
    assert history.endswith(f"{first.code} aa-new-one\n{second.code} aa-new-two\n")
    assert history.count(first.code) == 1 and str(HISTORY) in first.next_steps


def test_a_promised_name_gets_its_code(clone: Path):
    (clone / HISTORY).write_text("TL299 promised-rule\n")
    made = create("promised-rule", "graph", clone)
    assert made.code == "TL299" and not made.recorded and str(HISTORY) not in made.next_steps
    with pytest.raises(NewRuleError, match="no free code"):
        create("one-too-many", "graph", clone)


def test_without_a_history_codes_come_from_the_rules(clone: Path):
    (clone / HISTORY).unlink()
    first, second = create("aa-new-one", "api", clone), create("aa-new-two", "api", clone)
    assert int(second.code[2:]) == int(first.code[2:]) + 1
    assert not (clone / HISTORY).exists()


@pytest.mark.parametrize(
    "name, layer, match",
    [
        ("lost-sum", "tensors", "no layer 'tensors'"),
        ("Lost-Sum", "tensor", "lower-case words"),
        ("lost_sum", "tensor", "lower-case words"),
        ("../lost", "tensor", "lower-case words"),
        ("", "tensor", "lower-case words"),
        ("promised-rule", "tensor", "belongs to layer training"),
    ],
)
def test_what_cannot_be_made(clone: Path, name: str, layer: str, match: str):
    (clone / HISTORY).write_text("TL599 promised-rule\n")
    with pytest.raises(NewRuleError, match=match) as error:
        create(name, layer, clone)
    assert "\n" not in str(error.value)


def test_nothing_is_overwritten(clone: Path):
    made = create("lost-sum", "tensor", clone)
    text = made.path.read_text(encoding="utf-8")
    with pytest.raises(NewRuleError, match="exists"):
        create("lost-sum", "graph", clone)
    made.path.write_text("# no rule\n")
    with pytest.raises(NewRuleError, match="File exists"):
        create("lost-sum", "tensor", clone)
    assert made.path.read_text() == "# no rule\n" != text


def test_only_in_a_clone(tmp_path: Path):
    with pytest.raises(NewRuleError, match="run this in a clone"):
        create("lost-sum", "tensor", tmp_path)
