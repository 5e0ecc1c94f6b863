"""Classes of other libraries that derive from torch's, known by name so that they need not be installed.

`packages.json` was read from the sources of these libraries by `scripts/read_packages.py`: which of their classes
are Modules, optimizers, datasets ..., and which have a `__call__` that is not torch's. Kept by hand here are what
sources do not say so plainly (who runs the training loop), the libraries that were not read, and patterns for names
that come and go between versions.
"""
from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from torchlint.knowledge.tables import table


@dataclass(frozen=True, slots=True)
class ThirdParty:
    """What a class of another library is.

    `what`: module, optimizer, scheduler, dataset, sampler, loader, function, trainer (owns a training loop, is no
    Module) or plain (looks like a Module but is none). `flags`: framework_steps (the framework calls backward, step
    and zero_grad and switches modes), own_call (`__call__` belongs to the library and may differ from forward),
    own_forward (forward is called by the framework, not by users), rewrites (attributes become parameters or are
    replaced from outside).
    """

    name: str
    what: str
    flags: frozenset[str] = frozenset()


# Libraries that are parts of another one under a name of their own.
SAME_AS = {"pytorch_lightning": "lightning", "lightning_fabric": "lightning"}

# (packages, what, flags, class names). The package is the first part of the import path.
FAMILIES: tuple[tuple[str, str, str, str], ...] = (
    # Lightning: the Trainer runs the loop; see lightning/pytorch/core/module.py.
    ("lightning pytorch_lightning", "module", "framework_steps", "LightningModule BoringModel"),
    ("lightning pytorch_lightning", "plain", "", "LightningDataModule Callback"),
    ("lightning pytorch_lightning lightning_fabric", "trainer", "", "Trainer Fabric"),
    # transformers/trainer.py and the trainers of trl own the loop; the Generic classes are mixins.
    ("transformers", "trainer", "framework_steps", "Trainer Seq2SeqTrainer"),
    ("transformers", "plain", "", "Pipeline PretrainedConfig ProcessorMixin PreTrainedTokenizerBase "
     "GenericForSequenceClassification GenericForTokenClassification GenericForQuestionAnswering"),
    ("trl", "trainer", "framework_steps", "SFTTrainer DPOTrainer PPOTrainer RewardTrainer GRPOTrainer"),
    ("diffusers", "plain", "", "DiffusionPipeline SchedulerMixin ConfigMixin"),
    # torchmetrics/metric.py: forward accumulates, casts are kept from changing states.
    ("torchmetrics", "module", "own_forward", "Metric MetricCollection"),
    # torch_geometric: MessagePassing calls message, aggregate and update by name; Data is no tensor.
    ("torch_geometric", "plain", "", "Data HeteroData Batch BaseTransform"),
    ("torch_geometric", "dataset", "", "Dataset InMemoryDataset"),
    # pyro/nn/module.py: attributes of a PyroModule become parameters.
    ("pyro", "module", "own_call rewrites", "PyroModule Parameterized"),
    # fairseq is no longer released: models, encoders and criterions of its models/ and criterions/.
    ("fairseq", "module", "framework_steps",
     "BaseFairseqModel FairseqEncoder FairseqDecoder FairseqIncrementalDecoder FairseqEncoderDecoderModel "
     "FairseqLanguageModel FairseqCriterion"),
    ("fairseq", "plain", "framework_steps", "FairseqTask LegacyFairseqTask"),
    ("fairseq", "dataset", "", "FairseqDataset"),
    # speechbrain/core.py: Brain is a plain class that owns the loop; `self.modules` is a ModuleDict.
    ("speechbrain", "trainer", "framework_steps", "Brain"),
    ("tianshou", "module", "framework_steps", "Policy BasePolicy Algorithm OnPolicyAlgorithm OffPolicyAlgorithm"),
    ("stable_baselines3", "trainer", "", "BaseAlgorithm OnPolicyAlgorithm OffPolicyAlgorithm"),
    ("detectron2", "trainer", "framework_steps", "TrainerBase SimpleTrainer DefaultTrainer"),
    ("mmengine mmcv", "module", "framework_steps", "BaseModule BaseModel"),
    ("captum", "plain", "", "Attribution GradientAttribution"),
    ("ignite", "plain", "framework_steps", "Engine"),
    ("accelerate", "trainer", "", "Accelerator"),
    ("deepspeed", "module", "framework_steps", "DeepSpeedEngine PipelineEngine"),
    ("apex", "module", "", "FusedLayerNorm DistributedDataParallel"),
    ("norse", "module", "", "SNNCell SNNRecurrentCell"),
    ("torch_optimizer", "optimizer", "", "Lamb RAdam Lookahead Ranger Yogi AdaBound"),
    ("transformers", "optimizer", "", "AdamW Adafactor"),
    ("jaxtyping", "plain", "", "Float Int Bool"),
)

# Models that transformers names by what they are: `BertModel`, `T5ForConditionalGeneration`, `AutoModelForCausalLM`.
NAMED_MODEL = re.compile(
    r"(?!TF[A-Z]|Flax)[A-Z]\w*(PreTrainedModel|Model|For[A-Z]\w*|LMHeadModel|DoubleHeadsModel)|AutoModel\w*"
)
# diffusers: `UNet2DConditionModel`, `AutoencoderKL`; its schedulers and pipelines are no Modules.
NAMED_DIFFUSER = re.compile(r"[A-Z]\w*(Model|Transformer2D|VAE)|AutoencoderKL\w*|VQModel")
PATTERNS = {"transformers": NAMED_MODEL, "diffusers": NAMED_DIFFUSER}


@functools.cache
def _families() -> dict[tuple[str, str], tuple[str, str]]:
    found: dict[tuple[str, str], tuple[str, str]] = {}
    for packages, what, flags, classes in FAMILIES:
        for package in packages.split():
            for name in classes.split():
                found.setdefault((package, name), (what, flags))
    return found


def by_hand(dotted: str) -> str:
    """What a class is by the rows above alone, "" if they do not name it."""
    return _families().get((dotted.partition(".")[0], dotted.rpartition(".")[2]), ("", ""))[0]


@functools.cache
def _read(package: str) -> dict[str, tuple[str, str]]:
    """Class name, or "=" and the path inside the package, -> (what, flags), of a package that was read."""
    entry = table("packages").get(SAME_AS.get(package, package), {})
    return {
        name: (kind.partition(" ")[0], "own_call" if kind.endswith(" call") else "")
        for kind, names in entry.items() if kind != "version" for name in names.split()
    }


@functools.cache
def third_party_packages() -> frozenset[str]:
    """Import names of the libraries of which classes are known, torch's own namesakes included."""
    named = {package for package, _ in _families()} | set(PATTERNS) | set(SAME_AS)
    return frozenset(named | set(table("packages")) | {"torch", "torchvision", "torchaudio", "functorch"})


@functools.cache
def third_party_class(dotted: str) -> ThirdParty | None:
    """What a class of another library is, by its dotted import path; None for a class that is not known.

    The first part of the path is the package and the last the class: libraries re-export classes, so what lies
    between is not compared, except where a library has several classes of the name that are different things.
    """
    package, _, rest = dotted.partition(".")
    name = rest.rpartition(".")[2]
    if not rest:
        return None
    read = _read(package)
    kept = _families().get((package, name))
    found = kept or read.get(name) or read.get("=" + rest)
    if found is None:
        pattern = PATTERNS.get(package)
        if pattern is None or not pattern.fullmatch(name):
            return None
        found = ("module", "")
    flags = frozenset(found[1].split())
    if kept is not None and name in read:
        flags |= frozenset(read[name][1].split())
    return ThirdParty(dotted, found[0], flags)
