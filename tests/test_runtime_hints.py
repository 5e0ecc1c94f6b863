"""Factories of the configuration and functions marked with `example_for`: what users say themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

pytest.importorskip("torch")

import runtime_check
from runtime_check.evidence import cannot_tell
from runtime_check.remedies import by_surroundings, next_step
from torchlint.cli import main

#: Nothing but a hint can make a `Secret` that the constructor takes, or find the key.
NET = """import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, secret):
        super().__init__()
        width = secret.open("sesame").width
        self.layers = [nn.Linear(width, width) for _ in range(3)]

    def forward(self, x, key):
        if key != "sesame":
            raise KeyError(key)
        for layer in self.layers:
            x = layer(x)
        return x


def train(model, secret):
    total = 0.0
    for x in secret.open("sesame").batches:
        loss = model(x).sum()
        loss.backward()
        total += loss
    return total
"""
FACTORIES = """import torch
from torch import nn

from pkg.net import Net


class Opened:
    width = 4
    batches = [torch.randn(2, 4)] * 12


class Secret:
    def open(self, word):
        assert word == "sesame"
        return Opened()


def make_net():
    return Net(Secret()), (torch.randn(2, 4), "sesame")


def make_arguments():
    return nn.Linear(4, 4), Secret()
"""
CONFIG = """[tool.torchlint.confirm.factories]
"pkg.net:Net" = "tests/factories.py:make_net"
"pkg.net:train" = "tests/factories.py:make_arguments"
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    write("pkg/__init__.py", "")
    write("pkg/net.py", NET)


def write(name: str, text: str) -> None:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text)


def confirm(*options: str) -> Result:
    return CliRunner().invoke(main, ["confirm", "pkg/net.py", "--output-format", "json", *options])


def results() -> dict[str, dict[str, Any]]:
    """Results by code."""
    return {row["code"]: row for row in json.loads(confirm("--select", "TL405,TL201").stdout)["results"]}


def test_without_hints_nothing_can_be_said() -> None:
    assert {row["verdict"] for row in results().values()} <= {"not-reached", "cannot-tell"}


def test_factories_of_the_configuration_make_what_is_needed() -> None:
    write("tests/factories.py", FACTORIES)
    write("pyproject.toml", CONFIG)
    found = results()
    assert found["TL405"]["verdict"] == found["TL201"]["verdict"] == "confirmed", found
    assert found["TL405"]["how"] == "with factories.py:make_net()"
    assert found["TL201"]["how"] == "with factories.py:make_arguments()"


def test_marked_functions_are_found_in_the_project() -> None:
    write("pyproject.toml", "")
    marked = FACTORIES.replace("def make_net", "@runtime_check.example_for(Net)\ndef make_net")
    marked = marked.replace("def make_arguments", "@runtime_check.example_for('pkg.net:train')\ndef make_arguments")
    marked = marked.replace("import Net", "import Net, train")
    marked = marked.replace("import torch\n", "import torch, runtime_check\n", 1)
    write("tests/examples.py", marked)
    found = results()
    assert found["TL405"]["verdict"] == found["TL201"]["verdict"] == "confirmed", found
    assert found["TL405"]["how"] == "with examples.py:make_net()"


def test_the_mark_changes_nothing() -> None:
    def example() -> int:
        return 1

    assert runtime_check.example_for("pkg:Net")(example) is example


def test_a_factory_serves_checks_of_modules_too() -> None:
    write("tests/factories.py", FACTORIES)
    write("pyproject.toml", CONFIG)
    (row,) = json.loads(confirm("--select", "TL428").stdout)["examined"]
    assert row["verdict"] == "confirmed", row


@pytest.mark.parametrize(("config", "said"), [
    ("[tool.torchlint.confirm]\nfactorys = {}", "unknown key 'factorys'; did you mean 'factories'?"),
    ("[tool.torchlint.confirm.factories]\nNet = 'a.py:f'", "'Net' is no name such as"),
    ("[tool.torchlint.confirm.factories]\n'a:Net' = 'a.f'", "needs a place such as"),
    ("[tool.torchlint.confirm.factories]\n'a:Net' = 'gone.py:f'", "there is no file gone.py"),
    ("[tool.torchlint.confirm.factories]\n'pkg.net:Net' = 'pkg/net.py:tain'", "defines no tain; did you mean 'train'?"),
])
def test_a_configuration_that_is_wrong_is_one_line_and_2(config: str, said: str) -> None:
    write("pyproject.toml", config)
    done = confirm()
    assert done.exit_code == 2 and said in done.stderr, done.stderr
    reach = confirm("--reach")
    assert reach.exit_code == 2 and said in reach.stderr, reach.stderr


@pytest.mark.parametrize(("name", "said"), [
    ("pkg.nett:train", "there is no module pkg.nett"),
    ("pkg.net:trian", "pkg/net.py defines no trian; did you mean 'train'?"),
    ("pkg.net:Net", "no finding is in Net; what was not reached is in train"),
    ("pkg.net:train", ""),
])
def test_a_factory_for_nothing_is_told(name: str, said: str) -> None:
    write("tests/factories.py", FACTORIES)
    write("pyproject.toml", f"[tool.torchlint.confirm.factories]\n'{name}' = 'tests/factories.py:make_arguments'\n")
    done = confirm("--select", "TL201")
    assert done.exit_code == (0 if said else 1)
    assert (f"{name!r} is not used: {said}" in done.stderr) if said else not done.stderr, done.stderr
    assert confirm("--select", "TL201", "-q").stderr == ""


def test_a_factory_serves_reach_too() -> None:
    write("tests/factories.py", FACTORIES)
    write("pyproject.toml", CONFIG)
    rows = json.loads(confirm("--reach", "-k", "reach-module").stdout)["tried"]
    assert [(row["name"], row["verdict"]) for row in rows] == [("Net", "confirmed")]


def test_marked_functions_are_found_without_a_project_file() -> None:
    Path(".git").rmdir()
    marked = FACTORIES.replace("def make_net", "@runtime_check.example_for(Net)\ndef make_net")
    write("checks/examples.py", marked.replace("import torch\n", "import torch, runtime_check\n", 1))
    for paths in (("checks",), (".",)):
        done = confirm("--select", "TL405", *paths)
        (row,) = json.loads(done.stdout)["results"]
        assert (row["verdict"], row["how"]) == ("confirmed", "with examples.py:make_net()"), row


def test_a_mark_that_appears_where_no_project_file_is_runs_it_again() -> None:
    Path(".git").rmdir()
    assert results()["TL405"]["verdict"] != "confirmed"
    marked = FACTORIES.replace("def make_net", "@runtime_check.example_for(Net)\ndef make_net")
    write("checks/examples.py", marked.replace("import torch\n", "import torch, runtime_check\n", 1))
    assert results()["TL405"]["verdict"] == "confirmed"


GATE = """
import torch
from torch import nn


class Gate(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, x):
        h = torch.sigmoid(self.inner(x))
        y = h * h
        h.data.mul_(2)
        return y
"""


@pytest.mark.parametrize(
    ("body", "said"), [("raise ValueError('boom')", "raises ValueError: boom"), ("return 5", "gives no Gate")]
)
def test_nothing_is_guessed_in_place_of_a_factory_that_fails(body: str, said: str) -> None:
    write("pkg/net.py", GATE)
    write("tests/factories.py", f"def make():\n    {body}\n")
    (row,) = json.loads(confirm("--select", "TL101").stdout)["results"]
    assert row["verdict"] == "confirmed"
    write("pyproject.toml", '[tool.torchlint.confirm.factories]\n"pkg.net:Gate" = "tests/factories.py:make"\n')
    (row,) = json.loads(confirm("--select", "TL101").stdout)["results"]
    assert row["verdict"] in ("cannot-tell", "not-reached"), row
    assert f"factories.py:make() {said}" in row["why"], row


FUNCTIONS = """import torch


class Clamp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, low, high):
        ctx.save_for_backward(x)
        return x.clamp(low, high)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (x > 0), None, None
"""
DOCS = Path(__file__).parents[1] / "docs" / "confirm.md"


def of_functions() -> Result:
    """A run about the Function of the project."""
    return CliRunner().invoke(main, ["confirm", "pkg/functions.py", "--select", "TL313", "--output-format", "json"])


def run_with() -> str:
    """How the one finding about a Function of the project was run."""
    (row,) = json.loads(of_functions().stdout)["results"]
    return str(row["how"])


def examined() -> dict[str, Any]:
    """What is said of the one Function of the project."""
    (row,) = json.loads(of_functions().stdout)["examined"]
    assert isinstance(row, dict)
    return row


def test_the_documented_example_of_a_function_runs() -> None:
    blocks = [block.partition("```")[0] for block in DOCS.read_text(encoding="utf-8").split("```python\n")[1:]]
    (block,) = (block for block in blocks if "pkg.functions:Clamp" in block)
    write("pyproject.toml", "")
    write("pkg/functions.py", FUNCTIONS)
    write("tests/examples.py", block)
    row = examined()
    assert row["verdict"] == "confirmed" and "stands still" in row["why"], row
    assert run_with() == "Clamp.apply(examples.py:clamped_numbers())"


def test_a_thing_of_the_same_name_in_another_module_is_another_one() -> None:
    write("pyproject.toml", "")
    for name in ("functions", "others"):
        write(f"pkg/{name}.py", FUNCTIONS)
    text = "import torch\nfrom runtime_check import example_for\n\n\n@example_for('pkg.others:Clamp')\ndef made():\n"
    write("tests/examples.py", f"{text}    return torch.randn(8), -1.0, 1.0\n")
    assert "examples.py" not in run_with()


def test_an_example_with_which_nothing_can_be_told_is_named() -> None:
    write("pyproject.toml", "")
    text = FUNCTIONS.replace("Clamp", "Take").replace("ctx, x, low, high", "ctx, x, i")
    text = text.replace("ctx.save_for_backward(x)", "ctx.save_for_backward(i)\n        ctx.shape = x.shape")
    text = text.replace("return x.clamp(low, high)", "return x[i]").replace("(x,) = ctx", "(i,) = ctx")
    text = text.replace("return grad * (x > 0), None, None", "out = grad.new_zeros(ctx.shape)\n"
                        "        out[i] = grad  # wrong where an index comes twice\n        return out, None")
    write("pkg/functions.py", text)
    head = "import torch\nfrom runtime_check import example_for\n\n\n@example_for('pkg.functions:Take')\ndef made():\n"
    write("tests/examples.py", f"{head}    return torch.randn(5), torch.tensor([1, 1, 3])\n")
    row = examined()
    assert row["verdict"] == "cannot-tell" and "made up" not in row["why"], row
    assert row["why"] == (
        "with examples.py:made(), backward agrees with finite differences for some elements and not for others")
    assert next_step(cannot_tell(row["why"]), "pkg/functions.py", "Take", 1, "TL313") == (
        "let that example give arguments of another size or kind")


@pytest.mark.parametrize(
    ("returned", "verdict", "said"),
    [
        ("None, (torch.randn(8), -1.0, 1.0)", "confirmed", "stands still"),
        ("Clamp.apply, (torch.randn(8), -1.0, 1.0)", "confirmed", "stands still"),
        ("torch.randn(8), -1.0", "cannot-tell", "make() gives 2 of the arguments of Clamp.apply, (x, low, high)"),
    ],
)
def test_arguments_of_a_function_are_those_of_apply(returned: str, verdict: str, said: str) -> None:
    write("pyproject.toml", "")
    write("pkg/functions.py", FUNCTIONS)
    head = "import torch\nfrom pkg.functions import Clamp\nfrom runtime_check import example_for\n"
    write("tests/examples.py", f"{head}@example_for('pkg.functions:Clamp')\ndef make():\n    return {returned}\n")
    row = examined()
    assert row["verdict"] == verdict and said in row["why"], row
    assert verdict == "confirmed" or by_surroundings(row["why"], "", 1) == "mend examples.py:make(): it is to make them"


def test_a_mark_for_something_that_is_not_there_is_told_with_its_place() -> None:
    write("pyproject.toml", "")
    write("pkg/functions.py", FUNCTIONS)
    names = ("pkg.functions:Clamp", "pkg.functions:Clam", "pkg.gone:Net", "torch:Tensor")
    marks = [f"@example_for({name!r})\ndef make_{number}():\n    return ()\n" for number, name in enumerate(names)]
    write("tests/examples.py", "from runtime_check import example_for\n" + "".join(marks))
    lines = [line.partition("warning: ")[2] for line in of_functions().stderr.splitlines()]
    place = "tests/examples.py"
    assert [line for line in lines if place in line] == [
        f"{place}:5: example_for('pkg.functions:Clam') is not used: pkg/functions.py defines no Clam;"
        " did you mean 'Clamp'?",
        f"{place}:8: example_for('pkg.gone:Net') is not used: there is no module pkg.gone",
    ]
