"""The tables about torch agree with the torch that runs, and are what the generator makes of it."""
from __future__ import annotations

import ast
import subprocess
import sys
import warnings
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
    assert (other.returns, other.saves) == ("tensor", {"self", "other"})
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


# -- names and classes ------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "public"), [
    ("torch.nn.modules.linear.Linear", "torch.nn.Linear"),
    ("torch.nn.modules.transformer.Linear", "torch.nn.Linear"),
    ("torch.functional.norm", "torch.norm"),
    ("torch.optim.adam.Adam", "torch.optim.Adam"),
    ("torch.autograd.function.Function", "torch.autograd.Function"),
    ("torch.nn.parameter.Parameter", "torch.nn.Parameter"),
    ("torch.utils.data.dataloader.DataLoader", "torch.utils.data.DataLoader"),
    ("torch.utils.data.dataloader.DataLoader.__iter__", "torch.utils.data.DataLoader.__iter__"),
    ("torch.cuda.amp.grad_scaler.GradScaler", "torch.cuda.amp.GradScaler"),
    ("torch.amp.grad_scaler.GradScaler", "torch.amp.GradScaler"),
    ("torch.autograd.grad_mode.no_grad", "torch.no_grad"),
    ("torch.nn.parallel.distributed.DistributedDataParallel", "torch.nn.parallel.DistributedDataParallel"),
    ("torch.distributed.distributed_c10d.all_reduce", "torch.distributed.all_reduce"),
    ("torch.nn.utils.clip_grad.clip_grad_norm_", "torch.nn.utils.clip_grad_norm_"),
    ("torch._C._nn.gelu", "torch.nn.functional.gelu"),
    ("torch._tensor.Tensor", "torch.Tensor"),
    ("torch.serialization.load", "torch.load"),
    ("torch.nn.functional.conv2d", "torch.nn.functional.conv2d"),
    ("functorch.vmap", "functorch.vmap"), ("numpy.ndarray", "numpy.ndarray"),
    ("torch.nothing.here", "torch.nothing.here"),
])
def test_canonical(path: str, public: str) -> None:
    """Whatever module a name is imported from; a second look-up changes nothing."""
    assert knowledge.canonical(path) == public
    assert knowledge.canonical(public) == public


@same_torch
def test_canonical_names_are_the_same_objects() -> None:
    """Every alias in the table is the object of its public name."""
    import importlib

    seen = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module, targets in table("names").items():
            home = importlib.import_module(module)
            for target, words in targets.items():
                for name in words if target == "=" else words.split():
                    public = words[name] if target == "=" else f"{target}.{name}"
                    holder = importlib.import_module(public.rpartition(".")[0])
                    assert getattr(home, name) is getattr(holder, public.rpartition(".")[2]), (module, name)
                    seen += 1
    assert seen > 1200


@same_torch
def test_module_classes_against_instances() -> None:
    """Parameters, buffers and training mode of modules that are made here."""
    nn = torch.nn
    made = [nn.Linear(2, 2), nn.Conv2d(1, 1, 3), nn.BatchNorm1d(2), nn.LSTM(2, 2), nn.Dropout(), nn.ReLU(),
            nn.MSELoss(), nn.CrossEntropyLoss(), nn.Embedding(3, 2), nn.LayerNorm(2), nn.MultiheadAttention(4, 2),
            nn.Flatten(), nn.TransformerEncoderLayer(4, 2), nn.PReLU(), nn.MaxPool2d(2), nn.InstanceNorm1d(2),
            nn.GRUCell(2, 2), nn.Identity(), nn.RReLU(), nn.Bilinear(2, 2, 2), nn.Upsample(2), nn.GroupNorm(1, 2),
            nn.Softmax(dim=1)]
    for module in made:
        entry = knowledge.module_class(f"torch.nn.{type(module).__name__}")
        assert entry is not None and entry.built
        assert entry.has_parameters == any(True for _ in module.parameters()), entry
        assert entry.has_buffers == any(True for _ in module.buffers()), entry
        assert set(entry.parameters) == {name for name, _ in module.named_parameters(recurse=False)}, entry
        assert entry.stateless == (not list(module.state_dict())), entry
    entries = [knowledge.module_class(f"torch.nn.{type(module).__name__}") for module in made]
    sensitive = {entry.name.rpartition(".")[2] for entry in entries if entry is not None and entry.mode_sensitive}
    assert sensitive == {"BatchNorm1d", "LSTM", "Dropout", "MultiheadAttention", "TransformerEncoderLayer",
                         "InstanceNorm1d", "RReLU"}


@same_torch
def test_every_module_of_torch_nn_is_known() -> None:
    """And every optimizer, scheduler and dtype, under a name that is its own canonical one."""
    for name, value in vars(torch.nn).items():
        if isinstance(value, type) and issubclass(value, torch.nn.Module):
            assert knowledge.module_class(f"torch.nn.{name}") is not None, name
    for name, value in vars(torch.optim).items():
        if isinstance(value, type) and issubclass(value, torch.optim.Optimizer):
            assert knowledge.optimizer_class(f"torch.optim.{name}") is not None, name
    for name, value in vars(torch.optim.lr_scheduler).items():
        if isinstance(value, type) and issubclass(value, torch.optim.lr_scheduler.LRScheduler):
            assert knowledge.scheduler_class(f"torch.optim.lr_scheduler.{name}") is not None, name
    for name, value in vars(torch).items():
        if isinstance(value, torch.dtype):
            own = knowledge.torch_class(f"torch.{name}")
            assert own is not None and own.what == "dtype"
    aliases = {"torch.amp.autocast"}  # the class is torch.autocast; both are documented
    for name in table("classes"):
        assert knowledge.canonical(name) == name or name in aliases, name


def test_kinds_of_classes() -> None:
    """One of each."""
    assert knowledge.data_class("torch.utils.data.DataLoader") == "loader"
    assert knowledge.data_class("torch.utils.data.TensorDataset") == "dataset"
    assert knowledge.data_class("torch.utils.data.DistributedSampler") == "sampler"
    assert knowledge.data_class("torch.nn.Linear") is None
    assert knowledge.context("torch.no_grad") == "no_grad" and knowledge.context("torch.autocast") == "autocast"
    one_cycle = knowledge.scheduler_class("torch.optim.lr_scheduler.OneCycleLR")
    step = knowledge.scheduler_class("torch.optim.lr_scheduler.StepLR")
    assert one_cycle is not None and step is not None and (one_cycle.detail, step.detail) == ("batch", "epoch")
    lstm = knowledge.module_class("torch.nn.LSTM")
    assert lstm is not None and lstm.returns == "(tensor,(tensor,tensor))" and lstm.params[0].name == "input_size"
    linear = knowledge.module_class("torch.nn.Conv2d")
    assert linear is not None and linear.functional == "torch.nn.functional.conv2d"
    wrapper = knowledge.module_class("torch.nn.parallel.DistributedDataParallel")
    assert wrapper is not None and wrapper.wrapper


@pytest.mark.parametrize(("name", "what", "flag"), [
    ("lightning.pytorch.core.LightningModule", "module", "framework_steps"),
    ("pytorch_lightning.LightningModule", "module", "framework_steps"),
    ("transformers.PreTrainedModel", "module", ""), ("transformers.Trainer", "trainer", "framework_steps"),
    ("gpytorch.models.ExactGP", "module", "own_call"), ("speechbrain.Brain", "trainer", "framework_steps"),
    ("torch_geometric.nn.MessagePassing", "module", ""), ("torchmetrics.Metric", "module", "own_forward"),
    ("torch_geometric.nn.aggr.Aggregation", "module", "own_call"), ("diffusers.DiffusionPipeline", "plain", ""),
    ("timm.layers.DropPath", "module", ""),
    ("transformers.models.llama.modeling_llama.LlamaDecoderLayer", "module", ""),
    ("transformers.GenericForSequenceClassification", "plain", ""), ("transformers.NewestForCausalLM", "module", ""),
    ("torchvision.datasets.MNIST", "dataset", ""), ("torchvision.transforms.v2.RandomCrop", "module", ""),
    ("stable_baselines3.common.policies.ActorCriticPolicy", "module", ""), ("tianshou.Policy", "module", ""),
    ("pytorch_lightning.LightningDataModule", "plain", ""), ("kornia.core.ImageModule", "module", "own_call"),
    ("botorch.models.SingleTaskGP", "module", "own_call"), ("tensordict.nn.TensorDictModule", "module", ""),
    ("bitsandbytes.optim.AdamW8bit", "optimizer", ""),
    ("pytorch_metric_learning.losses.TripletMarginLoss", "module", ""),
])
def test_third_party_classes(name: str, what: str, flag: str) -> None:
    """Known by package and class, whatever lies between."""
    found = knowledge.third_party_class(name)
    assert found is not None and found.what == what
    assert not flag or flag in found.flags


def test_third_party_names_need_their_package() -> None:
    """A class of the same simple name elsewhere says nothing."""
    assert knowledge.third_party_class("mine.Trainer") is None
    assert knowledge.third_party_class("torchvision.transforms.ToTensor") is None  # v1 is no Module, v2 is
    assert knowledge.third_party_class("transformers.BertTokenizer") is None
    assert knowledge.third_party_class("Metric") is None


def test_framework_hooks_and_methods() -> None:
    """Evaluation hooks run without gradients; backward, clipping and wrapping by their methods' names."""
    step = knowledge.framework_hook("pytorch_lightning.LightningModule", "validation_step")
    assert step is not None and (step.grad, step.training, step.steps) == (False, False, True)
    assert knowledge.framework_hook("lightning.LightningModule", "on_test_epoch_end") == step
    train = knowledge.framework_hook("lightning.pytorch.LightningModule", "training_step")
    assert train is not None and train.grad and train.steps
    assert knowledge.framework_hook("lightning.LightningModule", "test_dataloader") is None
    assert knowledge.framework_hook("torch.nn.Module", "validation_step") is None
    inside = knowledge.framework_hook("torch.autograd.Function", "backward")
    assert inside is not None and inside.grad is False and inside.training is None
    assert knowledge.framework_method("accelerate.Accelerator", "clip_grad_norm_") == {"clip", "unscale"}
    assert knowledge.framework_method("lightning_fabric.Fabric", "backward") == {"backward"}
    assert knowledge.framework_method("accelerate.Accelerator", "print") == frozenset()


# -- deprecations -----------------------------------------------------------------------------


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
