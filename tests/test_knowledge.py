"""The tables about torch agree with the torch that runs, and are what the generator makes of it."""
from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchlint import knowledge
from torchlint.knowledge.callables import Overload
from torchlint.knowledge.tables import table

ROOT = Path(__file__).parent.parent
TABLES = ("attributes", "classes", "deprecated", "functions", "methods", "names")

torch = pytest.importorskip("torch")
RUNNING = torch.__version__.partition("+")[0]
TABLED = knowledge.torch_version()
same_torch = pytest.mark.skipif(RUNNING != TABLED, reason=f"torch {RUNNING} runs, the tables are of {TABLED}")


@same_torch
def test_generator_makes_the_same_tables(tmp_path: Path) -> None:
    """Byte for byte."""
    generator = str(ROOT / "scripts" / "generate_knowledge.py")
    command = [sys.executable, "-W", "ignore", generator, "--output", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, timeout=1200)
    for name in TABLES:
        made = (tmp_path / f"{name}.json").read_text(encoding="utf-8").splitlines()
        kept = (ROOT / "torchlint" / "knowledge" / f"{name}.json").read_text(encoding="utf-8").splitlines()
        different = [(a, b) for a, b in zip(made, kept, strict=False) if a != b]
        assert not different and len(made) == len(kept), f"{name}.json: {different[:3]}, {len(made)}, {len(kept)}"


# -- operators, run ---------------------------------------------------------------------------

# An expression over `a` and `b` (3x3, positive, with a graph), `i` (indices), `p` (a mask), and the operator `f`.
FUNCTIONS = {
    "torch.add": "f(a, b)", "torch.sub": "f(a, b)", "torch.mul": "f(a, b)", "torch.div": "f(a, b)",
    "torch.pow": "f(a, b)", "torch.matmul": "f(a, b)", "torch.exp": "f(a)", "torch.log": "f(a)", "torch.sqrt": "f(a)",
    "torch.sin": "f(a)", "torch.tanh": "f(a)", "torch.sigmoid": "f(a)", "torch.relu": "f(a)", "torch.abs": "f(a)",
    "torch.sum": "f(a)", "torch.mean": "f(a)", "torch.cat": "f([a, b])", "torch.stack": "f([a, b])",
    "torch.where": "f(p, a, b)", "torch.transpose": "f(a, 0, 1)", "torch.unsqueeze": "f(a, 0)",
    "torch.reshape": "f(a, (9,))", "torch.flatten": "f(a)", "torch.round": "f(a)", "torch.floor": "f(a)",
    "torch.sign": "f(a)", "torch.argmax": "f(a)", "torch.eq": "f(a, b)", "torch.isnan": "f(a)", "torch.clone": "f(a)",
    "torch.detach": "f(a)", "torch.gather": "f(a, 1, i)", "torch.index_select": "f(a, 0, i[0])",
    "torch.zeros_like": "f(a)",
    "torch.nn.functional.softmax": "f(a, dim=1)", "torch.nn.functional.log_softmax": "f(a, dim=1)",
    "torch.nn.functional.relu": "f(a)", "torch.nn.functional.gelu": "f(a)", "torch.nn.functional.silu": "f(a)",
    "torch.nn.functional.linear": "f(a, b)", "torch.nn.functional.mse_loss": "f(a, b)",
    "torch.nn.functional.cross_entropy": "f(a, i[0])", "torch.nn.functional.elu": "f(a)",
    "torch.nn.functional.layer_norm": "f(a, (3,))", "torch.nn.functional.embedding": "f(i, a)",
    "torch.nn.functional.leaky_relu": "f(a)", "torch.nn.functional.softplus": "f(a)",
    "torch.linalg.inv": "f(a)", "torch.linalg.norm": "f(a)", "torch.special.expit": "f(a)", "torch.fft.fft": "f(a)",
}
METHODS = {
    "add": "f(a, b)", "mul": "f(a, b)", "__mul__": "f(a, b)", "__matmul__": "f(a, b)", "__truediv__": "f(a, b)",
    "view": "f(a, 9)", "permute": "f(a, 1, 0)", "t": "f(a)", "expand": "f(a, 2, 3, 3)", "squeeze": "f(a)",
    "contiguous": "f(a)", "clone": "f(a)", "detach": "f(a)", "float": "f(a)", "sum": "f(a)", "mean": "f(a)",
    "item": "f(a[0, 0])", "tolist": "f(a)", "size": "f(a)", "dim": "f(a)", "numel": "f(a)", "argmin": "f(a)",
    "__lt__": "f(a, b)", "sigmoid": "f(a)", "tanh": "f(a)", "exp": "f(a)", "cumsum": "f(a, 0)", "is_contiguous": "f(a)",
    "masked_fill": "f(a, p, 0.0)", "clamp": "f(a, 0.2, 0.4)", "norm": "f(a)", "std": "f(a)", "var": "f(a)",
    "add_": "f(a, b)", "mul_": "f(a, b)", "relu_": "f(a)", "sigmoid_": "f(a)", "zero_": "f(a)", "copy_": "f(a, b)",
    "clamp_": "f(a, 0.2, 0.4)", "exp_": "f(a)", "requires_grad_": "f(a)",
}
CASES = [*((name, text, False) for name, text in FUNCTIONS.items()),
         *((name, text, True) for name, text in METHODS.items())]
WORDS = {torch.Size: "size", bool: "bool", int: "int", float: "float", list: "other"}


class Trial:
    """One fresh call of an operator, with the tensors that took part by parameter name."""

    def __init__(self, name: str, text: str, method: bool) -> None:
        self.entry = knowledge.method(name) if method else knowledge.function(name)
        torch.manual_seed(3)
        leaves = [torch.rand(3, 3, requires_grad=True) * 1.0 for _ in range(2)]
        scope = {"a": leaves[0] * 0.5 + 0.25, "b": leaves[1] * 0.5 + 0.25, "i": torch.tensor([[0, 1, 2]] * 3),
                 "p": torch.tensor([[True, False, True]] * 3), "f": self.call}
        self.target: Callable[..., Any] = getattr(torch.Tensor, name) if method else resolve(name)
        self.inputs: dict[str, Any] = {}
        self.method = method
        self.result = eval(text, scope)

    def call(self, *args: Any, **keywords: Any) -> Any:
        """Note the arguments and call the operator."""
        assert self.entry is not None
        kinds = [kind(each) for each in args]
        overload = self.entry.overload(kinds[1:] if self.method else kinds, keywords)
        assert overload is not None, f"no overload for {kinds}"
        self.overload: Overload = overload
        names = [p.name for p in overload.params if p.way in ("positional", "rest")]
        self.inputs = {name: each for name, each in zip(names, args, strict=False) if isinstance(each, torch.Tensor)}
        self.versions = {name: each._version for name, each in self.inputs.items()}
        return self.target(*args, **keywords)


def resolve(dotted: str) -> Any:
    """The object of a dotted name below torch."""
    value: Any = torch
    for name in dotted.split(".")[1:]:
        value = getattr(value, name)
    return value


def kind(value: Any) -> str:
    """The word for an argument's kind."""
    if isinstance(value, torch.Tensor):
        return "tensor"
    return {bool: "bool", int: "int", float: "float", tuple: "tuple", list: "list"}.get(type(value), "")


@same_torch
@pytest.mark.parametrize(("name", "text", "method"), CASES, ids=[case[0] for case in CASES])
def test_operator_does_what_its_entry_says(name: str, text: str, method: bool) -> None:
    """Result type, dtype, gradient, storage, in-place change and what backward keeps."""
    trial = Trial(name, text, method)
    overload, result = trial.overload, trial.result
    expected = "tensor" if isinstance(result, torch.Tensor) else WORDS.get(type(result), "tensors")
    assert overload.returns in (expected, "number" if expected == "float" else expected)
    if not isinstance(result, torch.Tensor):
        return
    assert trial.entry is not None
    changed = [key for key, each in trial.inputs.items() if each._version != trial.versions[key]]
    first = next(iter(trial.inputs), None)
    assert changed == ([first] if trial.entry.inplace else [])
    assert result.requires_grad == overload.differentiable or trial.entry.inplace
    if overload.dtype:
        assert str(result.dtype) == f"torch.{overload.dtype}"
    if first is not None and not trial.entry.factory:
        shares = result.untyped_storage().data_ptr() == trial.inputs[first].untyped_storage().data_ptr()
        assert shares == overload.view or overload.may_view
    if result.requires_grad and not overload.view:
        assert kept(name, text, method) - overload.may_save == overload.saves & {*trial.inputs, "result"}


def kept(name: str, text: str, method: bool) -> set[str]:
    """What must not change before backward: torch itself raises then."""
    found = set()
    for key in [*Trial(name, text, method).inputs, "result"]:
        trial = Trial(name, text, method)
        with torch.no_grad():
            changed = trial.result if key == "result" else trial.inputs[key]
            changed.zero_()
        try:
            trial.result.abs().sum().backward() if key != "result" else torch.autograd.backward(
                [trial.result], [torch.ones_like(trial.result)])
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error)
            found.add(key)
    return found


@same_torch
def test_zero_gradients() -> None:
    """Rounding operators carry a gradient that is zero; others do not say so."""
    for name in ("round", "floor", "ceil", "sign", "trunc"):
        entry = knowledge.method(name)
        assert entry is not None and entry.zero_grad and entry.differentiable
        value = torch.rand(5, requires_grad=True)
        getattr(value, name)().sum().backward()
        assert not value.grad.any()
    for name in ("exp", "relu", "abs", "clamp"):
        entry = knowledge.method(name)
        assert entry is not None and not entry.zero_grad


def test_overloads_are_told_apart() -> None:
    """By kinds of arguments and by keywords; unknown arguments leave it open."""
    entry = knowledge.method("max")
    assert entry is not None
    pair = entry.overload(["int"])
    assert pair is not None and pair.names == ("values", "indices") and pair.outputs == (True, False)
    other, whole = entry.overload(["tensor"]), entry.overload([])
    assert other is not None and whole is not None
    assert (other.returns, other.saves) == ("tensor", frozenset(("self", "other")))
    assert whole.returns == "tensor" and entry.overload([""]) is None
    dim = entry.overload([], ["dim"])
    assert dim is not None and dim.count == 2
    assert entry.overload(["int", "int", "int", "int"]) is None


def test_saved_tensors_depend_on_who_needs_them() -> None:
    """A product keeps a factor only for the other one's gradient."""
    entry = knowledge.function("torch.mul")
    assert entry is not None and entry.overloads[0].saved_for == {"input": {"other"}, "other": {"input"}}
    dropout = knowledge.function("torch.nn.functional.dropout")
    assert dropout is not None and dropout.random and dropout.may_view and not dropout.view


@same_torch
def test_attributes() -> None:
    """What reading an attribute gives, for every attribute of a tensor."""
    value = torch.rand(2, 2, requires_grad=True) * 1
    for name in table("attributes"):
        if name in ("grad", "name", "imag", "grad_fn", "volatile", "grad_dtype"):
            continue
        entry = knowledge.tensor_attribute(name)
        assert entry is not None
        result = getattr(value, name)
        if isinstance(result, torch.Tensor):
            assert entry.returns == "tensor" and entry.view and result.requires_grad == entry.differentiable, name
        elif type(result) in WORDS:
            assert entry.returns == WORDS[type(result)], name
    assert knowledge.tensor_attribute("no_such_attribute") is None


def test_every_entry_can_be_read() -> None:
    """All overloads of all operators decode to known words, and name what they save by their parameters."""
    results = {"tensor", "tensors", "number", "bool", "int", "float", "size", "dtype", "device", "string", "none",
               "other"}
    ways = {"positional", "keyword", "rest", "keywords"}
    for kind_, look_up in (("functions", knowledge.function), ("methods", knowledge.method)):
        for name in table(kind_):
            entry = look_up(name)
            assert entry is not None and entry.overloads
            for overload in entry.overloads:
                assert overload.returns in results, name
                assert {p.way for p in overload.params} <= ways, name
                names = {p.name for p in overload.params}
                for saved in overload.saves | overload.may_save:
                    assert saved in names or saved.startswith("result"), (name, saved)
                    assert overload.saved_for.get(saved, frozenset()) <= names, (name, saved)
    assert len(table("functions")) > 800 and len(table("methods")) > 600


# -- cost -------------------------------------------------------------------------------------


def test_tables_load_fast_and_without_torch() -> None:
    """In at most three times what parsing their JSON takes; torch is never imported."""
    program = (
        "import json, sys, time\n"
        "from torchlint import knowledge\n"
        "from torchlint.knowledge.tables import HERE, table\n"
        f"names = {TABLES!r}\n"
        "texts = [(HERE / f'{name}.json').read_text(encoding='utf-8') for name in names]\n"
        "def took(work):\n"
        "    start = time.perf_counter()\n"
        "    work()\n"
        "    return time.perf_counter() - start\n"
        "def load():\n"
        "    table.cache_clear()\n"
        "    for name in names: table(name)\n"
        "def parse():\n"
        "    for text in texts: json.loads(text)\n"
        "pairs = [(took(load), took(parse)) for _ in range(9)]\n"
        "assert 'torch' not in sys.modules, 'torch was imported'\n"
        "print(min(a for a, _ in pairs) / min(b for _, b in pairs))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=ROOT)
    assert float(done.stdout) < 3, f"loading all tables took {float(done.stdout):.1f} times as long as parsing them"
