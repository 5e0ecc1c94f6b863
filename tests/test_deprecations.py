"""What the tables say of deprecated and removed names is true of the torch that runs."""
from __future__ import annotations

import ast
import sys
import warnings
from pathlib import Path

import pytest

from torchlint import knowledge

ROOT = Path(__file__).parent.parent

torch = pytest.importorskip("torch")
RUNNING = torch.__version__.partition("+")[0]
TABLED = knowledge.torch_version()
same_torch = pytest.mark.skipif(RUNNING != TABLED, reason=f"torch {RUNNING} runs, the tables are of {TABLED}")


def decorated() -> set[str]:
    """Public functions, classes and methods of the running torch that carry a `deprecated` decorator."""
    home = Path(torch.__file__).parent
    found: set[str] = set()
    for path in sorted(home.rglob("*.py")):
        relative = path.relative_to(home).with_suffix("")
        text = path.read_text(encoding="utf-8")
        parts = ["torch", *(part for part in relative.parts if part != "__init__")]
        private = any(part.startswith("_") for part in parts) or "experimental" in parts
        if "deprecated(" not in text or private:
            continue
        stack: list[tuple[ast.AST, str]] = [(ast.parse(text), ".".join(parts))]
        while stack:
            node, inside = stack.pop()
            for child in ast.iter_child_nodes(node):
                name = inside
                if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
                    name = f"{inside}.{child.name}"
                    if any("deprecated(" in ast.unparse(each) for each in child.decorator_list):
                        found.add(name.removesuffix(".__init__"))
                if isinstance(child, (ast.FunctionDef, ast.ClassDef, ast.If, ast.Try)):
                    stack.append((child, name))
    return {name for name in found if not any(part.startswith("_") for part in name.split("."))}


# Helpers of the generators of torch's own sources, and members that are no names users write.
NOT_LISTED = {
    "torch.utils.data.datapipes.gen_pyi.materialize_lines", "torch.utils.data.datapipes.gen_pyi.gen_from_template",
    "torch.distributed.launch.main", "torch.nn.utils.weight_norm.WeightNorm.apply",
    "torch.nn.attention.flex_attention.flex_attention", "torch.ao.nn.quantized.dynamic.modules.rnn.apply_permutation",
}


@same_torch
def test_no_deprecated_decorator_is_missing() -> None:
    """Everything public that torch decorates is listed, or named above with a reason."""
    names = decorated()
    missing = {name for name in names if knowledge.deprecated(name) is None} - NOT_LISTED
    assert not missing, sorted(missing)
    assert len(names) > 45


# Probes of these need more than plain tensors.
OTHER_INPUTS = ("distributed", ".ao.", "cuda", "_pytree", "library", "accelerator")


def test_deprecations_are_well_formed() -> None:
    """Versions are releases, removals come after deprecations, names are canonical, kinds are known."""
    found = list(knowledge.deprecations())
    assert len(found) > 400
    for each in found:
        assert knowledge.canonical(each.name) == each.name, each
        assert each.since.replace(".", "").isdigit() and each.evidence, each
        if each.removed:
            assert each.status(each.removed) == "removed", each
            assert each.status(each.since) in ("deprecated", "removed"), each
        assert each.status("1.7") == "", each
        assert bool(each.argument) == (each.kind in ("argument", "missing", "value", "signature")), each


@same_torch
def test_deprecations_are_true_of_the_running_torch() -> None:
    """A removed name raises, another one with an expression to try does not, and most of these warn."""
    tried = [each for each in knowledge.deprecations() if each.observed]
    for each in tried:
        assert each.observed.startswith("raises") == (each.status(RUNNING) == "removed"), each
    warned = [each for each in tried if each.observed.endswith("Warning")]
    assert len(warned) > 180 and len(tried) > 330


@same_torch
def test_same_arguments_give_the_same_result() -> None:
    """Where a row claims that only the name changes, calling the replacement gives what the old name gives."""
    sys.path.insert(0, str(ROOT / "scripts"))
    from knowledge import deprecations  # type: ignore[import-not-found]

    compared = 0
    for row in [*deprecations.written(), *deprecations.families()]:
        if row.kind != "function" or row.arguments != "same" or row.differs or row.removed:
            continue
        if not row.probe.startswith(row.name) or any(word in row.name for word in OTHER_INPUTS):
            continue
        scope = {"torch": torch, "m": torch.nn.Linear(2, 2), "x": torch.tensor([[2.0, 1.0], [1.0, 3.0]])}
        if row.name.startswith("functorch"):
            scope["functorch"] = __import__("functorch")
        results = []
        for text in (row.probe, row.probe.replace(row.name, row.replacement)):
            torch.manual_seed(0)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                results.append(eval(text, scope))
        old, new = results
        if isinstance(old, torch.Tensor):
            assert torch.equal(old, new), row
        compared += 1
    assert compared >= 20
    assert deprecations.observed("torch.nn.Identity()") == "silent"  # the check itself can say that nothing happens


def test_deprecated_names_are_found_by_any_path() -> None:
    """By the written path, through a deprecated module, and arguments by their callable."""
    assert knowledge.deprecated("torch.nn.Linear") is None
    six = knowledge.deprecated("torch._six.string_classes")
    assert six is not None and six.status("2.1") == "removed" and six.status("1.12") == ""
    moved = knowledge.deprecated("torch.nn.quantized.Linear")
    assert moved is not None and moved.replacement == "torch.ao.nn.quantized.Linear"
    scaler = knowledge.deprecated("torch.cuda.amp.grad_scaler.GradScaler")
    assert scaler is not None and scaler.adds == ((0, "'cuda'"),) and scaler.moves[0].place == 1
    solve = knowledge.deprecated("torch.solve")
    assert solve is not None and [move.place for move in solve.moves] == [1, 0] and solve.differs
    verbose = knowledge.deprecated_arguments("torch.optim.lr_scheduler.StepLR")
    assert [each.argument for each in verbose] == ["verbose"] and verbose[0].removed == "2.7"
    order = knowledge.deprecated_arguments("torch.Tensor.add_")
    assert [each.argument for each in order] == ["self,alpha,other"]
    assert knowledge.public_name("torch._tensor.Tensor") == "torch.Tensor"
    assert knowledge.public_name("torch.Tensor") is None and knowledge.public_name("torch._C._nothing") is None
