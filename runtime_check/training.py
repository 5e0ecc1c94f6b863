"""Candidates for the arguments of training and evaluation functions, and of the classes that hold them."""
from __future__ import annotations

import ast
import importlib
import itertools
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import Any

import torch
from torch import nn

from runtime_check import names, world
from runtime_check.environments import Continuous, Environment
from runtime_check.functions import ArgumentGuesser
from runtime_check.guess import NOTHING, Asked
from runtime_check.outside import Quiet
from runtime_check.specs import Const, Made, Spec, Tensor
from runtime_check.usage import Usage, source_tree
from runtime_check.world import BatchSpec, Recipe

LABELS = re.compile(r"(^|_)(y|labels?|targets?|tgt|gt|cls|class\w*|ids?|lbl|answer|ground_truth)$|^(ys|yb|_)$")
PATHS = re.compile(r"path|checkpoint|ckpt|resume|(^|_)(file|filename|fname|weights_file|model_file|snapshot)$")
ENVIRONMENTS = re.compile(r"(^|_)(env|envs|environment)$")
LOSS_KINDS: tuple[Callable[..., nn.Module], ...] = (
    nn.CrossEntropyLoss, nn.MSELoss, nn.BCEWithLogitsLoss, nn.NLLLoss, nn.L1Loss, nn.BCELoss,
)
MODEL_METHODS = frozenset({"parameters", "named_parameters", "state_dict", "zero_grad", "train", "eval", "modules"})


def own_rank() -> int:
    """The number of this process, where an experiment has started several."""
    return int(os.environ.get("RANK", "0"))


def ranks() -> int:
    """How many processes there are."""
    return int(os.environ.get("WORLD_SIZE", "1"))


class TrainingGuesser(ArgumentGuesser):
    """Knows what training code is given. `recipes` are the models that could be made, best first."""

    def __init__(self, function: Any, owner: type | None, recipes: list[Recipe]) -> None:
        super().__init__(function, owner)
        self.recipes = recipes

    def values(self, asked: Asked) -> list[Spec]:
        """For constructors: the same objects, then plain values."""
        role = list(self.roles(asked)) if asked.required else []
        return [*role, *super().values(asked)]

    def inputs(self, asked: Asked) -> list[Spec]:
        """For calls: objects by their role also where None is the default."""
        found = super().inputs(asked)
        if not asked.required and asked.default is None:
            found += [item for item in self.roles(asked) if item not in found]
        return found

    def _required(self, asked: Asked) -> Iterator[Spec]:
        role = list(self.roles(asked))
        yield from role
        yield from itertools.islice(super()._required(asked), 2 if role else None)

    def roles(self, asked: Asked) -> Iterator[Spec]:
        """Objects of the current world that a parameter of this name and use stands for."""
        text, use = names.snake(asked.name), asked.use
        called = use.methods
        if world.OPTIMIZERS.search(text) or {"step", "zero_grad"} <= called:
            for kind in (torch.optim.SGD, torch.optim.Adam):
                maker = partial(world.make_optimizer, asked.name, kind)
                yield Made(f"torch.optim.{kind.__name__}({asked.name})", maker)
        elif world.SCHEDULERS.search(text):
            yield Made("torch.optim.lr_scheduler.StepLR(optimizer, 1)", partial(world.make_scheduler, asked.name))
        elif world.SCALERS.search(text) or {"scale", "step", "update"} <= called:
            yield Made('torch.amp.GradScaler("cpu")', world.make_scaler)
        elif world.LOSSES.search(text) and not use.is_tensor and not use.arithmetic:
            yield from (Made(f"nn.{kind.__name__}()", kind) for kind in LOSS_KINDS)
        elif world.LOGS.search(text):
            yield Made("a silent logger", Quiet)
        elif world.DEVICES.search(text):
            yield from (Made("device", lambda: torch.device(world.device)), Made("str(device)", lambda: world.device))
        elif world.RANKS.search(text) or text == "world_size":
            yield Made("1", ranks) if text == "world_size" else Made("0", own_rank)
        elif ENVIRONMENTS.search(text):
            yield from environments()
        elif self.function.__name__ == "__getitem__":
            yield from (Const(0), Const(1))
        elif PATHS.search(text) and not use.layers:
            yield Made("the path of a saved state_dict", saved_state)
        elif text in ("epoch", "step", "iteration", "global_step", "batch_idx", "batch_i"):
            yield from (Const(0), Const(1))
        elif self._is_model(asked, text):
            yield from self.models(asked)
        elif text in ("batch", "data", "inputs", "sample", "minibatch") and not use.element and not use.layers:
            yield from self.batches(asked.use, single=True)
        elif not use.is_tensor and (world.LOADERS.search(text) or (use.element is not None and use.element.unpacked)):
            yield from self.batches(use.element or Usage(), single=False)
        if text == "batch" or (text == "data" and use.unpacked):
            yield from self.batches(asked.use, single=True)

    def _is_model(self, asked: Asked, text: str) -> bool:
        use = asked.use
        if use.methods & MODEL_METHODS and not use.is_tensor:
            return True
        hint = asked.hint if isinstance(asked.hint, type) else None
        if hint is not None and issubclass(hint, nn.Module):
            return True
        free = any(asked.hint is hint for hint in (None, NOTHING, Any, Callable))
        if free and use.calls and not use.is_tensor and self.differentiates:
            return True
        return bool(names.MODULES.search(asked.name) and (use.calls or use.attributes or not use.arithmetic))

    @cached_property
    def differentiates(self) -> bool:
        """Whether the function asks for gradients: of what it calls they are those of a model."""
        tree = source_tree(self.function)
        calls = (node for node in (ast.walk(tree) if tree is not None else ()) if isinstance(node, ast.Call))
        return any(re.fullmatch(r"(.*autograd\.)?grad", ast.unparse(node.func)) for node in calls)

    def models(self, asked: Asked) -> Iterator[Spec]:
        """The world's model of this name; its maker looks the world up when it is called."""
        if isinstance(asked.hint, type) and asked.hint is not nn.Module:
            fitting = [item for item in self.recipes if item.name == asked.hint.__name__]
            if fitting:
                yield Made(f"{fitting[0].name}(...)", partial(world.make_model, fitting[0].name))
        yield Made(f"a model for `{asked.name}`", partial(world.make_model, asked.name))

    # Batches

    def batches(self, use: Usage, *, single: bool) -> Iterator[BatchSpec]:
        """Loaders, or single batches, in the form that the code takes apart."""
        recipes = [*self.recipes[:2], world.ANY]
        for recipe in recipes:
            inputs = [spec for _, spec in recipe.inputs.tensors()] if recipe.inputs is not None else []
            x = inputs[0] if inputs else Tensor((names.BATCH, names.WIDTH))
            targets = world.targets_for(recipe.output, recipe.inputs)
            for y in targets:
                yield from self.forms(use, x, y, inputs, single)

    def forms(self, use: Usage, x: Tensor, y: Spec, inputs: list[Tensor], single: bool) -> Iterator[BatchSpec]:
        """Batches of inputs and targets in the form that the code takes apart."""
        if use.keys:
            parts = tuple((key, y if LABELS.search(names.snake(key)) else x) for key in use.keys)
            yield BatchSpec(tuple(item for _, item in parts), "dict", tuple(key for key, _ in parts), single=single)
            return
        if use.splatted or use.methods & {"items", "values", "keys"}:  # `model(**batch)`
            yield BatchSpec((x, x, y), "dict", ("input_ids", "attention_mask", "labels"), single=single)
        if use.unpacked:
            yield BatchSpec(tuple(self._parts(use, x, y, inputs)), single=single)
            return
        if use.is_tensor and not use.element:
            yield BatchSpec((x,), "alone", single=single)
        yield BatchSpec((x, y), single=single)
        yield BatchSpec((x,), "alone", single=single)

    def _parts(self, use: Usage, x: Tensor, y: Spec, inputs: list[Tensor]) -> Iterator[Spec]:
        """Items of a batch: what is named like a label is the target, the last of two too, the rest are inputs."""
        several = iter(inputs)
        for position, name in enumerate(use.parts or ("",) * use.unpacked):
            last = position == use.unpacked - 1 and position > 0
            if LABELS.search(names.snake(name)) or (last and use.unpacked == 2):
                yield y
            else:
                yield next(several, x)


def environments() -> Iterator[Spec]:
    """Environments of reinforcement learning: a real small one if its package is there."""
    for package in ("gymnasium", "gym"):
        try:
            module = importlib.import_module(package)
        except Exception:
            continue
        yield Made(f'{package}.make("CartPole-v1")', partial(module.make, "CartPole-v1"))
    yield Made("an environment with random observations", Environment)
    yield Made("an environment with random observations, and numbers for actions", Continuous)


def saved_state() -> str:
    """The path of a file that `torch.load` reads: the state of the current world's model."""
    handle, path = tempfile.mkstemp(suffix=".pt")
    os.close(handle)
    torch.save(world.current.model("model").state_dict(), path)
    return path


def model_classes(space: Any, owner_module: str = "") -> list[type]:
    """Module classes of the file that are no part of another one, the last first; then the parts."""
    found: list[type] = []
    for name in sorted(space.binding, key=lambda item: -space.binding[item][0].index):
        if not name[:1].isupper():
            continue
        try:
            value = space.get(name)
        except Exception:
            continue
        if isinstance(value, type) and issubclass(value, nn.Module) and not value.__module__.startswith("torch"):
            found.append(value)
    texts = {cls.__name__: _class_text(space, cls) for cls in found}

    def is_part(cls: type) -> bool:
        return any(f"{cls.__name__}(" in text for name, text in texts.items() if name != cls.__name__)

    return sorted(found, key=is_part)


def _class_text(space: Any, cls: type) -> str:
    for step in space.binding.get(cls.__name__, ()):
        if isinstance(step.node, ast.ClassDef):
            return ast.unparse(step.node)
    return ""


def recipes_for(space: Any, *, budget_s: float, at_most: int = 4) -> list[Recipe]:
    """Models of the file that can be made and run, for training functions that take one."""
    from runtime_check.modules import running

    found: list[Recipe] = []
    classes = model_classes(space)[:at_most]
    for cls in classes:
        try:
            item = next(itertools.islice(running(cls, budget_s / max(len(classes), 1)), 1), None)
        except Exception:
            continue
        if item is not None and item.inputs is not None:
            found.append(Recipe(cls.__name__, item.made.make, item.inputs, item.value))
    return found
