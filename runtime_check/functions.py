"""Arguments for functions: of autograd Functions, and of plain functions on tensors."""
from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from runtime_check import names
from runtime_check.blame import Context
from runtime_check.guess import Asked
from runtime_check.inputs import InputGuesser
from runtime_check.modules import CannotBuild, explain
from runtime_check.repair import repairs
from runtime_check.search import Failure, Search
from runtime_check.specs import OMIT, Assignment, Const, Made, Spec, Tensor
from runtime_check.usage import source_tree

PATIENCE = 8  # arguments that run forward but not backward, after which the fault is the Function's
CONTEXTS = ("ctx", "context", "self", "cls", "c", "ct")


#: Parameters that bound others from below and above, as those of a clamp do.
LOW = re.compile(r"v?(lo|low|lower|min|minimum)(_?(val|value|bound|limit))?$", re.IGNORECASE)
HIGH = re.compile(r"v?(hi|high|upper|max|maximum)(_?(val|value|bound|limit))?$", re.IGNORECASE)
#: What torch says of a gradient for an argument that was no tensor; a number that was meant to be one.
NO_TENSOR = re.compile(r"different than None at position (\d+), but the corresponding forward input was not a Variable")
#: Parameters that take groups of processes, and error texts of Functions that are not differentiable everywhere.
GROUPS, MESHES = re.compile(r"(^|_)(group|pg)$"), re.compile(r"(^|_)mesh$")
NO_GRADIENT = re.compile(r"gradients? (?:with respect to|w\.r\.t\.|for|of) ([\w ,`']+)")


def process_group() -> Any:
    """The default process group, of this process alone."""
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return dist.group.WORLD


def device_mesh() -> Any:
    """A mesh of this process alone."""
    from torch.distributed.device_mesh import init_device_mesh

    process_group()
    return init_device_mesh("cpu", (1,))


@dataclass(frozen=True)
class Example:
    """Arguments for `apply` with which forward ran. Floating tensors are float64 leaves that require grad."""

    label: str
    arguments: Callable[[], tuple[Any, ...]]  # new ones each time
    function: Any  # the Function class
    as_called: bool = False  # the arguments are those of a call in the project
    hinted: bool = False  # the user has said them
    trained: Callable[[], Set[int]] = frozenset  # positions of those that ask for a gradient in that call

    def call(self) -> Any:
        """Applies the Function to new arguments."""
        return self.function.apply(*self.arguments())


def differentiable(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments with floating tensors turned into float64 leaves that require grad."""

    def convert(value: Any) -> Any:
        match value:
            case torch.Tensor() if value.is_floating_point():
                return value.detach().double().requires_grad_()
            case torch.Tensor() if value.is_complex():
                return value.detach().to(torch.complex128).requires_grad_()
            case list() | tuple() if type(value) in (list, tuple):
                return type(value)(convert(item) for item in value)
        return value

    return tuple(convert(value) for value in values)


class ArgumentGuesser(InputGuesser):
    """Candidates for the arguments of a function whose parameters may be tensors or plain values.

    `applied` are the arguments of a call in the file: as many are made, and what is written out is kept.
    """

    def __init__(self, function: Any, owner: type | None = None, *, drop_context: bool = False,
                 applied: Sequence[ast.expr] = ()) -> None:
        super().__init__(function, None, owner)
        self.drop_context, self.applied = drop_context, applied
        self.saved, self.kept = saved_and_kept(function)
        self.written = {item.name: value for item, arg in zip(self.parameters(), applied, strict=False)
                        for value in literals(arg)}

    def parameters(self) -> Any:
        found = super().parameters()
        if self.drop_context and found and found[0].name in CONTEXTS:
            found = found[1:]
        if not self.applied or any(item.kind is item.VAR_POSITIONAL for item in found):
            return found
        given, rest = found[: len(self.applied)], found[len(self.applied):]
        return [*(item.replace(default=item.empty) for item in given), *(i for i in rest if i.default is i.empty)]

    def inputs(self, asked: Asked) -> list[Spec]:
        if asked.name in self.written:
            return [Const(self.written[asked.name])]
        return super().inputs(asked)

    def _required(self, asked: Asked) -> Iterator[Spec]:
        low, high = LOW.match(asked.name), HIGH.match(asked.name)
        if (low or high) and not asked.use.is_tensor and asked.hint is not int:
            yield Const(-1.0 if low else 1.0)
        if GROUPS.search(asked.name):
            yield Made("a process group of one", process_group)
        elif MESHES.search(asked.name):
            yield Made("a device mesh of one", device_mesh)
        elif asked.use.calls and not asked.use.is_tensor:
            yield Made("nn.Identity()", torch.nn.Identity)
        if asked.name not in self.saved and self._is_plain(asked):
            yield from self._plain(asked)
        yield from super()._required(asked)
        yield from self._plain(asked)

    def _is_plain(self, asked: Asked) -> bool:
        """Whether the value is rather a number, flag or string than a tensor."""
        use = asked.use
        if use.is_tensor or asked.name in self.saved or "Tensor" in str(asked.hint):
            return False
        value = names.number(asked.name)
        small = isinstance(value, float) or (value is not None and value != names.WIDTH)
        flag = names.is_flag(asked.name) and not (asked.name == "bias" and use.arithmetic)
        return asked.name in self.kept or small or use.is_string or flag or use.ranged

    def _plain(self, asked: Asked) -> Iterator[Spec]:
        use, value = asked.use, names.number(asked.name)
        if use.is_string:
            yield from self.strings(asked)
        if names.is_flag(asked.name) or (use.truth and not use.arithmetic):
            yield from (Const(names.flag(asked.name)), Const(not names.flag(asked.name)))
        if value is not None and (isinstance(value, float) or value != names.WIDTH):
            yield Const(value)
        yield from (Const(0.5), Const(2))


def literals(arg: ast.expr) -> list[Any]:
    """The number, string, flag or None that is written out as an argument; nothing for others."""
    try:
        value = ast.literal_eval(arg)
    except ValueError:
        return []
    return [value] if value is None or isinstance(value, (bool, int, float, str)) else []


def applied(tree: ast.AST, name: str) -> Sequence[ast.expr]:
    """The arguments of the call of `name.apply` in a file that has most of them."""
    found = [node.args for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
             and node.func.attr == "apply" and isinstance(node.func.value, ast.Name) and node.func.value.id == name
             and not any(isinstance(arg, ast.Starred) for arg in node.args)]
    return max(found, key=len, default=())


def saved_and_kept(function: Any) -> tuple[set[str], set[str]]:
    """Names given to `ctx.save_for_backward`, and names stored on `ctx` as attributes."""
    tree = source_tree(function)
    saved: set[str] = set()
    kept: set[str] = set()
    for node in ast.walk(tree) if tree is not None else ():
        match node:
            case ast.Call(func=ast.Attribute(attr="save_for_backward" | "mark_dirty"), args=args):
                saved |= {item.id for part in args for item in ast.walk(part) if isinstance(item, ast.Name)}
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id=name))], value=ast.Name(id=value)):
                kept |= {value} if name in CONTEXTS else set()
    return saved, kept


def examples(cls: Any, budget_s: float, tree: ast.AST | None = None) -> Iterator[Example]:
    """Made-up arguments with which an autograd Function runs, as they are found; `tree` is the file's.

    Those that also get back through `backward` come first; if the first few that run forward do not, they
    are given as they are, since the fault may be the Function's. Raises CannotBuild if none runs.
    """
    given = applied(tree, cls.__name__) if tree is not None else ()
    guesser = ArgumentGuesser(cls.forward, cls, drop_context=not has_setup(cls), applied=given)
    starts, candidates = guesser.starts()

    only_forward: list[Assignment] = []
    constant: set[str] = set()  # arguments that the Function refuses to give a gradient

    def run(chosen: Assignment) -> Any:
        try:
            value = cls.apply(*positional(chosen, constant))
        except Exception as error:
            said = NO_GRADIENT.search(str(error))
            named = set(re.findall(r"\w+", said[1])) & {name for name, _ in chosen.items} if said else set()
            if not named - constant:
                raise
            constant.update(named)
            value = cls.apply(*positional(chosen, constant))
        ends = [item for item in _tensors(value) if item.requires_grad]
        if ends and len(only_forward) < PATIENCE:
            only_forward.append(chosen)
            sum((item.abs() if item.is_complex() else item).sum() for item in ends).backward()
            only_forward.clear()
        return value

    def repair(chosen: Assignment, failure: Failure) -> Iterator[Assignment]:
        yield from with_tensor(chosen, failure)
        yield from repairs(Context(chosen, failure, cls.forward, candidates))

    search = Search(run, repair, budget_s, key=f"{cls.__qualname__}.apply")
    none = True
    for found in itertools.islice(search.results(starts), 6):
        if len(only_forward) == PATIENCE:
            break
        if found.operations > 1 and any(True for _ in _tensors(found.value)):
            chosen, none = found.arguments, False
            yield Example(chosen.label, partial(positional, chosen, frozenset(constant)), cls)
    for chosen in only_forward[:2]:
        none = False
        yield Example(chosen.label, partial(positional, chosen, frozenset(constant)), cls)
    if none:
        raise CannotBuild(explain(f"{cls.__name__}.apply", search.failure))


def with_tensor(chosen: Assignment, failure: Failure) -> Iterator[Assignment]:
    """With a tensor in place of a number for which backward has given a gradient: of one row of the first, or as it."""
    said = NO_TENSOR.search(failure.text)
    first = next((spec for _, spec in chosen.leaves()), None)
    if said is None or first is None or not 0 < int(said[1]) <= len(chosen.items):
        return
    name = chosen.items[int(said[1]) - 1][0]
    for shape in dict.fromkeys([first.shape[-1:], first.shape]):
        yield chosen.put(name, Tensor(shape))


def positional(chosen: Assignment, constant: Set[str] = frozenset()) -> tuple[Any, ...]:
    """The arguments of `apply`, which takes no names; those that are named constant require no gradient."""
    values: list[Any] = []
    for name, spec in chosen.items:
        if spec == OMIT:
            break  # what follows is left to the defaults too
        made = spec.make()
        fixed = isinstance(spec, Tensor) and spec.kind == "fixed"
        given = made if name == chosen.spread else [made.double()] if fixed else differentiable((made,))
        if name in constant:
            given = [item.detach() if isinstance(item, torch.Tensor) else item for item in given]
        values.extend(given)
    return tuple(values)


def has_setup(cls: Any) -> bool:
    """Whether the Function has a `setup_context`, so that its forward takes no ctx."""
    return cls.setup_context is not torch.autograd.Function.setup_context


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    match value:
        case torch.Tensor():
            yield value
        case list() | tuple():
            for item in value:
                yield from _tensors(item)


@dataclass(frozen=True)
class Call:
    """Arguments for a function: those with which it ran, or that got furthest."""

    arguments: Assignment
    ran: bool
    operations: int


def calls(function: Callable[..., Any], owner: type | None, budget_s: float, *, reached: Callable[[Failure], bool],
          starts: list[Assignment] | None = None, candidates: dict[str, list[Spec]] | None = None,
          receiver: Callable[[], Any] | None = None,
          before: Callable[[], None] = lambda: None) -> Iterator[Call]:
    """Arguments with which a function runs or fails on the line of interest (`reached`), as they are found."""
    if starts is None or candidates is None:
        starts, candidates = ArgumentGuesser(function, owner).starts()

    def run(chosen: Assignment) -> Any:
        before()
        args, kwargs = chosen.make()
        first = [receiver()] if receiver is not None else []
        value = function(*first, *args, **kwargs)
        return list(itertools.islice(value, 8)) if hasattr(value, "__next__") else value

    def repair(chosen: Assignment, failure: Failure) -> Iterator[Assignment]:
        return repairs(Context(chosen, failure, function, candidates))

    search = Search(run, repair, budget_s, reached, key=str(getattr(function, "__qualname__", "")))
    none = True
    for found in search.results(starts):
        none = False
        yield Call(found.arguments, found.ran, found.operations)
    if none:
        raise CannotBuild(explain(getattr(function, "__qualname__", str(function)), search.failure), search)
