"""Base classes of other libraries that derive from torch's, known by name so that they need not be installed.

Kept by hand: each group names the library whose sources were looked at. A name is matched in full, or by
package and class name where a library re-exports a class from many places.
"""
from __future__ import annotations

import functools
import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ThirdParty:
    """What a class of another library is.

    `what`: module, optimizer, scheduler, dataset, function, trainer (owns a training loop, is no Module) or
    plain (looks like a Module but is none). `flags`: framework_steps (the framework calls backward, step and
    zero_grad and switches modes), own_call (`__call__` differs from forward and belongs to the library),
    own_forward (forward is called by the framework, not by users), rewrites (attributes become parameters or
    are replaced from outside).
    """

    name: str
    what: str
    flags: frozenset[str] = frozenset()


# (package, what, flags, class names). The package is the first part of the import path.
FAMILIES: tuple[tuple[str, str, str, str], ...] = (
    # Lightning: the Trainer runs the loop; see lightning/pytorch/core/module.py.
    ("lightning pytorch_lightning", "module", "framework_steps", "LightningModule BoringModel"),
    ("lightning pytorch_lightning", "plain", "", "LightningDataModule Callback"),
    ("lightning pytorch_lightning", "trainer", "", "Trainer"),
    ("lightning lightning_fabric", "trainer", "", "Fabric"),
    ("lightning lightning_fabric", "module", "", "_FabricModule"),
    # transformers/modeling_utils.py, modeling_layers.py; Trainer in trainer.py is no Module.
    ("transformers", "module", "",
     "PreTrainedModel GradientCheckpointingLayer GenericForSequenceClassification GenericForTokenClassification "
     "GenericForQuestionAnswering ModuleUtilsMixin PreTrainedAudioTokenizerBase"),
    ("transformers", "trainer", "framework_steps", "Trainer Seq2SeqTrainer"),
    ("transformers", "plain", "", "Pipeline PretrainedConfig ProcessorMixin PreTrainedTokenizerBase"),
    ("trl", "trainer", "framework_steps", "SFTTrainer DPOTrainer PPOTrainer RewardTrainer GRPOTrainer"),
    # diffusers/models/modeling_utils.py; pipelines are no Modules.
    ("diffusers", "module", "", "ModelMixin Attention"),
    ("diffusers", "plain", "", "DiffusionPipeline SchedulerMixin ConfigMixin"),
    # timm/layers and timm/models: what other projects take from it.
    ("timm", "module", "",
     "VisionTransformer ResNet ConvNeXt EfficientNet SwinTransformer DropPath DropBlock2d Mlp GluMlp SwiGLU PatchEmbed "
     "Block Attention LayerNorm LayerNorm2d LayerScale BatchNormAct2d ConvNormAct SelectAdaptivePool2d ClassifierHead "
     "NormMlpClassifierHead SEModule EcaModule Bottleneck BasicBlock FeatureListNet LabelSmoothingCrossEntropy "
     "SoftTargetCrossEntropy JsdCrossEntropy BinaryCrossEntropy AsymmetricLossMultiLabel ModelEma ModelEmaV2 "
     "ModelEmaV3 RmsNorm Swish StdConv2d BlurPool2d SplitAttn RotAttentionPool2d AttentionPool2d"),
    # torchmetrics/metric.py: forward accumulates, casts are kept from changing states.
    ("torchmetrics", "module", "own_forward", "Metric MetricCollection"),
    # gpytorch/module.py overrides __call__; kernels, means and likelihoods mean something else by it than forward.
    ("gpytorch", "module", "own_call",
     "Module Kernel Mean Likelihood GaussianLikelihood ExactGP ApproximateGP GP _VariationalStrategy "
     "VariationalStrategy _VariationalDistribution Prior MarginalLogLikelihood"),
    ("botorch", "module", "own_call",
     "AcquisitionFunction AnalyticAcquisitionFunction MCAcquisitionFunction Model InputTransform "
     "ReversibleInputTransform OutcomeTransform MCSampler RiskMeasureMCObjective MCAcquisitionObjective "
     "PosteriorTransform BaseTestProblem SyntheticTestFunction"),
    # torch_geometric: MessagePassing calls message/aggregate/update by name; Aggregation overrides __call__.
    ("torch_geometric", "module", "", "MessagePassing BasicGNN ExplainerAlgorithm"),
    ("torch_geometric", "module", "own_call", "Aggregation"),
    ("torch_geometric", "plain", "", "Data HeteroData Batch BaseTransform"),
    ("torch_geometric", "dataset", "", "Dataset InMemoryDataset"),
    # pyro: attributes of a PyroModule become parameters.
    ("pyro", "module", "own_call rewrites", "PyroModule Parameterized Predictive AutoGuide AutoContinuous"),
    ("fairseq", "module", "framework_steps",
     "BaseFairseqModel FairseqEncoder FairseqDecoder FairseqIncrementalDecoder FairseqEncoderDecoderModel "
     "FairseqLanguageModel FairseqCriterion"),
    ("fairseq", "plain", "framework_steps", "FairseqTask LegacyFairseqTask"),
    ("fairseq", "dataset", "", "FairseqDataset"),
    # speechbrain/core.py: Brain is a plain class that owns the loop; `self.modules` is a ModuleDict.
    ("speechbrain", "trainer", "framework_steps", "Brain"),
    ("speechbrain", "module", "", "Pretrained"),
    ("tianshou", "module", "framework_steps", "Policy BasePolicy"),
    ("tianshou", "plain", "framework_steps", "Algorithm OnPolicyAlgorithm OffPolicyAlgorithm"),
    ("stable_baselines3", "module", "", "BaseModel BasePolicy ActorCriticPolicy BaseFeaturesExtractor QNetwork"),
    ("stable_baselines3", "trainer", "", "BaseAlgorithm OnPolicyAlgorithm OffPolicyAlgorithm"),
    ("torchrl", "module", "own_call", "Transform EnvBase LossModule TargetNetUpdater"),
    ("tensordict", "module", "own_call", "TensorDictModule TensorDictModuleBase TensorDictSequential"),
    ("kornia", "module", "",
     "IntensityAugmentationBase2D GeometricAugmentationBase2D AugmentationBase2D RandomGeneratorBase OperationBase "
     "MixAugmentationBaseV2 ImageModule"),
    ("pytorch_metric_learning", "module", "",
     "BaseMetricLossFunction WeightRegularizerMixin BaseMiner BaseTupleMiner BaseReducer BaseDistance "
     "ModuleWithRecords BaseRegularizer"),
    ("sentence_transformers", "module", "", "Module SentenceTransformer CrossEncoder InputModule"),
    ("segmentation_models_pytorch", "module", "", "SegmentationModel ClassificationHead SegmentationHead EncoderMixin"),
    ("detectron2", "module", "", "Backbone ROIHeads GeneralizedRCNN FastRCNNOutputLayers CNNBlockBase"),
    ("detectron2", "trainer", "framework_steps", "TrainerBase SimpleTrainer DefaultTrainer"),
    ("mmengine mmcv", "module", "framework_steps", "BaseModule BaseModel"),
    ("monai", "module", "", "UNet DiceLoss Warp"),
    ("monai", "dataset", "", "Dataset CacheDataset PersistentDataset"),
    ("torchvision", "module", "",
     "ResNet VisionTransformer DenseNet VGG MobileNetV2 MobileNetV3 GeneralizedRCNN FasterRCNN MaskRCNN RetinaNet "
     "EfficientNet ConvNeXt SwinTransformer GoogLeNet Inception3 AlexNet SqueezeNet Bottleneck BasicBlock "
     "IntermediateLayerGetter FeaturePyramidNetwork DeepLabV3 FCN ConvNormActivation Conv2dNormActivation "
     "FrozenBatchNorm2d SqueezeExcitation StochasticDepth MultiScaleRoIAlign AnchorGenerator RoIPool RoIAlign "
     "DeformConv2d RegionProposalNetwork VideoResNet"),
    ("torchvision", "dataset", "", "VisionDataset ImageFolder DatasetFolder MNIST CIFAR10 CIFAR100 CocoDetection"),
    ("torchaudio", "module", "", "Wav2Vec2Model Conformer"),
    ("peft", "module", "", "PeftModel BaseTuner BaseTunerLayer LoraLayer"),
    ("captum", "plain", "", "Attribution GradientAttribution"),
    ("ignite", "plain", "framework_steps", "Engine"),
    ("accelerate", "trainer", "", "Accelerator"),
    ("apex", "module", "", "FusedLayerNorm DistributedDataParallel"),
    ("e3nn", "module", "", "TensorProduct FullyConnectedNet"),
    ("norse", "module", "", "SNNCell SNNRecurrentCell"),
    ("snntorch", "module", "", "SpikingNeuron"),
    ("torch_optimizer bitsandbytes", "optimizer", "", "Lamb RAdam Adam8bit AdamW8bit Optimizer8bit"),
    ("transformers", "optimizer", "", "AdamW Adafactor"),
)

# Classes whose full path decides, because their simple name is common.
EXACT: dict[str, tuple[str, str]] = {
    "lightning.pytorch.LightningModule": ("module", "framework_steps"),
    "pytorch_lightning.LightningModule": ("module", "framework_steps"),
    "deepspeed.DeepSpeedEngine": ("module", "framework_steps"),
    "jaxtyping.Float": ("plain", ""),
}


# Models that transformers names by what they are: `BertModel`, `T5ForConditionalGeneration`, `AutoModelForCausalLM`.
NAMED_MODEL = re.compile(r"(?!TF[A-Z]|Flax)[A-Z]\w*(PreTrainedModel|Model|For[A-Z]\w*|LMHeadModel|DoubleHeadsModel)|AutoModel\w*")
# diffusers: `UNet2DConditionModel`, `AutoencoderKL`; its schedulers and pipelines are no Modules.
NAMED_DIFFUSER = re.compile(r"[A-Z]\w*(Model|Transformer2D|VAE)|AutoencoderKL\w*|VQModel")


@functools.cache
def _families() -> dict[tuple[str, str], tuple[str, str]]:
    found: dict[tuple[str, str], tuple[str, str]] = {}
    for packages, what, flags, classes in FAMILIES:
        for package in packages.split():
            for name in classes.split():
                found.setdefault((package, name), (what, flags))
    return found


@functools.cache
def third_party_class(dotted: str) -> ThirdParty | None:
    """What a class of another library is, by its dotted import path; None for a class that is not known.

    The first part of the path is the package and the last the class: libraries re-export classes, so what lies
    between is not compared.
    """
    package, _, rest = dotted.partition(".")
    if not rest:
        return None
    found = EXACT.get(dotted) or _families().get((package, rest.rpartition(".")[2]))
    if found is None:
        patterns = {"transformers": NAMED_MODEL, "diffusers": NAMED_DIFFUSER}
        named = patterns.get(package)
        if named is not None and named.fullmatch(rest.rpartition(".")[2]):
            found = ("module", "")
    return None if found is None else ThirdParty(dotted, found[0], frozenset(found[1].split()))
