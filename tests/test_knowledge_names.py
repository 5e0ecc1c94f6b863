"""Names and classes of torch and of the libraries around it are known as they are."""
from __future__ import annotations

import warnings

import pytest

from torchlint import knowledge
from torchlint.knowledge.tables import table

torch = pytest.importorskip("torch")
RUNNING = torch.__version__.partition("+")[0]
TABLED = knowledge.torch_version()
same_torch = pytest.mark.skipif(RUNNING != TABLED, reason=f"torch {RUNNING} runs, the tables are of {TABLED}")


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
