"""What training frameworks do around user code: under which mode they call a hook, and what their methods do.

Kept by hand; each group names the source that says so.
"""
from __future__ import annotations

import functools
from dataclasses import dataclass

from torchlint.knowledge.third_party import SAME_AS


@dataclass(frozen=True, slots=True)
class Hook:
    """How a framework calls a method that users override.

    `grad` and `training` are None where the framework decides neither. `steps`: backward, step and zero_grad
    around it belong to the framework.
    """

    grad: bool | None = None
    training: bool | None = None
    steps: bool = False


EVALUATED = Hook(grad=False, training=False, steps=True)
TRAINED = Hook(grad=True, training=True, steps=True)

# (package, class) -> method, or a prefix that ends in "*", -> how it is called.
HOOKS: dict[tuple[str, str], dict[str, Hook]] = {
    # pytorch/loops/utilities.py, _no_grad_context: the whole evaluation and prediction loop, their hooks included.
    ("lightning", "LightningModule"): {
        "training_step": TRAINED, "on_train_batch_start": TRAINED, "on_train_batch_end": TRAINED,
        "on_train_epoch_start": TRAINED, "on_train_epoch_end": TRAINED, "training_step_end": TRAINED,
        "validation_step*": EVALUATED, "test_step*": EVALUATED, "predict_step": EVALUATED,
        "validation_epoch_end": EVALUATED, "test_epoch_end": EVALUATED, "on_validation_batch*": EVALUATED,
        "on_validation_epoch*": EVALUATED, "on_test_batch*": EVALUATED, "on_test_epoch*": EVALUATED,
        "on_predict_batch*": EVALUATED, "on_predict_epoch*": EVALUATED, "on_before_zero_grad": Hook(steps=True),
        "on_before_backward": TRAINED, "on_after_backward": TRAINED, "on_before_optimizer_step": TRAINED,
        "configure_optimizers": Hook(), "optimizer_step": Hook(training=True), "backward": TRAINED,
        "configure_gradient_clipping": Hook(training=True),
    },
    # trainer.py: evaluation_loop calls eval(); only the inherited prediction_step enters no_grad by itself.
    ("transformers", "Trainer"): {
        "compute_loss": Hook(steps=True), "training_step": TRAINED, "prediction_step": Hook(training=False, steps=True),
    },
    # modeling_utils.py: initialize_weights runs under no_grad.
    ("transformers", "PreTrainedModel"): {"_init_weights": Hook(grad=False)},
    # core.py: fit_batch steps; evaluate_batch is entered under no_grad and in evaluation mode.
    ("speechbrain", "Brain"): {
        "compute_forward": Hook(steps=True), "compute_objectives": Hook(steps=True), "evaluate_batch": EVALUATED,
        "fit_batch": Hook(grad=True, training=True),
    },
    # tasks/fairseq_task.py: train_step calls backward, valid_step enters no_grad.
    ("fairseq", "FairseqTask"): {"train_step": TRAINED, "valid_step": EVALUATED, "inference_step": EVALUATED},
    ("fairseq", "FairseqCriterion"): {"forward": Hook(steps=True)},
    # mmengine/model/base_model: train_step hands the loss to the optimizer wrapper; the loops enter no_grad.
    ("mmengine", "BaseModel"): {"train_step": TRAINED, "val_step": EVALUATED, "test_step": EVALUATED},
    # torch: the graph is off inside a custom Function and inside an optimizer's step (decorated with no_grad).
    ("torch", "Function"): {"forward": Hook(grad=False), "backward": Hook(grad=False)},
    ("torch", "Optimizer"): {"step": Hook(grad=False)},
}

# (package, class) -> method -> what it does, in words: backward, zero_grad, step, clip, unscale, barrier, collective,
# unwrap, prepare (hands its arguments back wrapped), context (enter it), no_grad, eval, detach.
METHODS: dict[tuple[str, str], dict[str, str]] = {
    # accelerate/accelerator.py: clipping unscales; inside accumulate() step and zero_grad may do nothing.
    ("accelerate", "Accelerator"): {
        "backward": "backward", "clip_grad_norm_": "clip unscale", "clip_grad_value_": "clip unscale",
        "unscale_gradients": "unscale", "prepare": "prepare", "prepare_model": "prepare",
        "prepare_optimizer": "prepare", "prepare_data_loader": "prepare", "prepare_scheduler": "prepare",
        "unwrap_model": "unwrap", "wait_for_everyone": "barrier", "gather": "collective",
        "gather_for_metrics": "collective", "reduce": "collective", "pad_across_processes": "collective",
        "accumulate": "context", "no_sync": "context", "autocast": "context",
    },
    # lightning/fabric/fabric.py
    ("lightning", "Fabric"): {
        "backward": "backward", "clip_gradients": "clip unscale", "setup": "prepare", "setup_module": "prepare",
        "setup_optimizers": "prepare", "setup_dataloaders": "prepare", "barrier": "barrier",
        "all_gather": "collective", "all_reduce": "collective", "broadcast": "collective",
        "no_backward_sync": "context", "autocast": "context", "init_module": "context", "init_tensor": "context",
    },
    # lightning/pytorch/core/module.py: log keeps a detached copy.
    ("lightning", "LightningModule"): {
        "manual_backward": "backward", "clip_gradients": "clip", "log": "detach", "log_dict": "detach",
        "all_gather": "collective",
    },
    # deepspeed/runtime/engine.py: step clips, steps and clears the gradients.
    ("deepspeed", "DeepSpeedEngine"): {"backward": "backward", "step": "clip step zero_grad"},
    # pyro/infer/svi.py: step returns a float.
    ("pyro", "SVI"): {"step": "backward step zero_grad"},
    # mmengine/optim/optimizer/optimizer_wrapper.py
    ("mmengine", "OptimWrapper"): {
        "update_params": "backward clip step zero_grad", "backward": "backward", "step": "clip step",
        "zero_grad": "zero_grad",
    },
    # fairseq/optim/fairseq_optimizer.py
    ("fairseq", "FairseqOptimizer"): {
        "backward": "backward", "step": "step", "zero_grad": "zero_grad", "clip_grad_norm": "clip",
    },
    # tianshou/algorithm/algorithm_base.py: the wrapper's step takes the loss.
    ("tianshou", "Optimizer"): {"step": "zero_grad backward clip step"},
    # timm/utils/cuda.py: calling the scaler runs backward and steps; the caller clears.
    ("timm", "NativeScaler"): {"__call__": "backward unscale clip step"},
    ("timm", "ApexScaler"): {"__call__": "backward clip step"},
    ("torch", "GradScaler"): {"unscale_": "unscale", "step": "unscale step"},
}


@functools.cache
def framework_hook(dotted: str, method: str) -> Hook | None:
    """How the framework that owns a class calls one of its methods; None if it does not, or is not known.

    `dotted` is the class that users derive from, such as "lightning.pytorch.LightningModule".
    """
    known = HOOKS.get(_key(dotted), {})
    exact = known.get(method)
    if exact is not None:
        return exact
    return next((hook for name, hook in known.items() if name.endswith("*") and method.startswith(name[:-1])), None)


@functools.cache
def framework_method(dotted: str, method: str) -> frozenset[str]:
    """What calling a framework object's method does; empty if nothing is known.

    `dotted` is the object's class, such as "accelerate.Accelerator".
    """
    return frozenset(METHODS.get(_key(dotted), {}).get(method, "").split())


def _key(dotted: str) -> tuple[str, str]:
    package = dotted.partition(".")[0]
    return SAME_AS.get(package, package), dotted.rpartition(".")[2]
