"""HooksSkipped: a module's forward runs, and the forward hooks registered on it do not.

Watched are calls of a `forward` from the flagged statement itself, or all calls of the flagged class
where its definition is at fault. A call counts as skipped when no forward hook ran on that module before it
returned and torch's own `Module.__call__` was not its caller. Where both programs end in one and the same error
before a forward hook can run, those that run before `forward` tell.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from types import FrameType

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from runtime_check.evidence import Evidence, Outcome, Verdict, cannot_tell
from runtime_check.probes.bench import Bench, Program, Run, Way, doubtful, first_decisive
from runtime_check.trace import class_around

#: The file with torch's code between a call of a module and its forward.
MACHINERY = torch.nn.modules.module.__file__


BUILDS = 3
BORROWED = "borrowed"  # the kind of a way whose inputs were found with another program
DEFINITION = "TL401"  # flags the method that stands in the way, not a call


@dataclass
class Calls:
    """What was counted in one run."""

    run: Run
    skipped: int = 0
    normal: int = 0
    kinds: set[str] = field(default_factory=set)  # classes whose hooks were skipped
    hooks: Counter[str] = field(default_factory=Counter)  # hooks that ran, by class
    earlier: Counter[str] = field(default_factory=Counter)  # hooks that ran before a forward, by class


class Watch:
    """Follows the calls of one run.

    With `definitions`, calls of the flagged class count; else calls that a flagged statement makes.
    """

    def __init__(self, program: Program, calls: Calls, definitions: bool) -> None:
        self.definitions = definitions
        self.path, self.calls = program.path, calls
        self.classes = {name for spot in program.spots if (name := class_around(program.text, spot.first))}
        self.stretches = [(spot.first, spot.last) for spot in program.spots]
        self.open: dict[FrameType, tuple[torch.nn.Module, int]] = {}  # module, hooks that had run on it
        self.fired: Counter[int] = Counter()

    def hook(self, module: torch.nn.Module, args: object, output: object) -> None:
        """The forward hook, registered on every module."""
        self.fired[id(module)] += 1
        self.calls.hooks[type(module).__name__] += 1

    def hook_before(self, module: torch.nn.Module, args: object) -> None:
        """The hook that runs before a forward."""
        self.calls.earlier[type(module).__name__] += 1

    def profile(self, frame: FrameType, event: str, arg: object) -> None:
        """The profiler: entries to and returns from the calls of interest."""
        if event == "return" and frame in self.open:
            module, before = self.open.pop(frame)
            hooked = self.fired[id(module)] > before
            self.count(module, hooked)
        elif (
            event == "call"
            and frame.f_code.co_name in ("forward", "__call__")
            and frame.f_code.co_filename != MACHINERY
        ):
            module = self.receiver(frame)
            if module is None or not self.interesting(frame, module):
                return
            if frame.f_back is not None and frame.f_back.f_code.co_filename == MACHINERY:
                self.calls.normal += 1
            else:
                self.open[frame] = module, self.fired[id(module)]

    def count(self, module: torch.nn.Module, hooked: bool) -> None:
        """One finished call."""
        if hooked:
            self.calls.normal += 1
        else:
            self.calls.skipped += 1
            self.calls.kinds.add(type(module).__name__)

    def receiver(self, frame: FrameType) -> torch.nn.Module | None:
        """The module that a method is called on."""
        code = frame.f_code
        value = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        return value if isinstance(value, torch.nn.Module) else None

    def interesting(self, frame: FrameType, module: torch.nn.Module) -> bool:
        """Whether a call is made by, or defined at, a flagged statement. `super().forward` is neither."""
        code, caller = frame.f_code, frame.f_back
        if any(module is other for other, _ in self.open.values()):
            return False  # inside a call that is counted already
        if self.definitions and code.co_filename == self.path and type(module).__name__ in self.classes:
            return True
        while caller is not None and caller.f_code.co_filename == MACHINERY:
            caller = caller.f_back
        if caller is None or caller.f_code.co_filename != self.path:
            return False
        parent = caller.f_code.co_name == code.co_name and self.receiver(caller) is module
        return not parent and any(a <= caller.f_lineno <= b for a, b in self.stretches)


@contextmanager
def watched(program: Program, calls: Calls, definitions: bool) -> Iterator[None]:
    """Counts while it lasts."""
    watch = Watch(program, calls, definitions)
    handles = register_module_forward_hook(watch.hook), register_module_forward_pre_hook(watch.hook_before)
    old = sys.getprofile()
    sys.setprofile(watch.profile)
    try:
        yield
    finally:
        sys.setprofile(old)
        for handle in handles:
            handle.remove()


def measure(bench: Bench, program: Program, way: Way) -> Calls:
    """Counts the calls of one run."""
    calls = Calls(Run(way.label))
    with watched(program, calls, bench.case.code == DEFINITION):
        calls.run = bench.run(program, way)
    return calls


def probe(bench: Bench) -> Outcome:
    """Confirmed when hooks are skipped in the flagged program and run in the corrected one."""
    return first_decisive(bench, ways(bench), lambda way: judge(bench, way), most=4)


def ways(bench: Bench) -> Iterator[Way]:
    """The usual ways; then instances of a class without a forward, called with what fits the corrected one."""
    yield from bench.ways(bench.flagged)
    if bench.case.code != DEFINITION or bench.corrected is None:
        return
    for spot in bench.flagged.spots:
        name = class_around(bench.flagged.text, spot.first)
        if name:
            yield from borrowed(bench, bench.flagged, bench.corrected, name)


def borrowed(bench: Bench, program: Program, other: Program, name: str) -> Iterator[Way]:
    """Calls of a class of one program with inputs that were found for the class in another."""
    from runtime_check.drive import build_module

    found = islice(build_module(other.space, name, seed=bench.case.seed), BUILDS)
    instances = list(islice(build_module(program.space, name, seed=bench.case.seed), 1))
    for built in found:
        if built.inputs is not None and instances:
            yield Way(f"{built.label}", partial(call_with, instances[0].module, built.inputs), BORROWED)


def call_with(module: torch.nn.Module, inputs: Callable[[], tuple[list[object], dict[str, object]]]) -> object:
    """Calls a module with new inputs."""
    args, kwargs = inputs()
    return module(*args, **kwargs)


def counterpart(bench: Bench, way: Way) -> Way | None:
    """The corrected program run in the same way."""
    if way.kind != BORROWED or bench.corrected is None:
        return bench.same(way)
    names = [class_around(bench.flagged.text, spot.first) for spot in bench.flagged.spots]
    others = (w for name in names if name for w in borrowed(bench, bench.corrected, bench.corrected, name))
    return next((other for other in others if other.label == way.label), None)


def judge(bench: Bench, way: Way) -> Outcome | None:
    """The outcome of one way of running the program."""
    bad = measure(bench, bench.flagged, way)
    total = bad.skipped + bad.normal
    if not total:
        bench.note(bad.run.trouble or f"no module was called at the flagged line ({way.label})")
        return None
    label = f"forward hooks that ran on {', '.join(sorted(bad.kinds)) or 'the module'}"
    if not bad.skipped:
        row = Evidence(label, str(bad.normal), "calls", str(total))
        return Outcome(Verdict.REFUTED, "forward hooks run on every call", (row,), way.label)
    rows = [Evidence(label, "0", "calls that skip them", str(bad.skipped))]
    other = counterpart(bench, way)
    if bench.corrected is None or other is None:
        if bad.normal:
            return Outcome(
                Verdict.CONFIRMED,
                f"{bad.skipped} of {total} calls skip the forward hooks",
                tuple(rows),
                way.label,
            )
        return cannot_tell("the hooks do not run, and there is no corrected program to compare with", rows, way.label)
    good = measure(bench, bench.corrected, other)
    ran = sum(good.hooks[kind] for kind in bad.kinds)
    rows.append(Evidence(label, str(sum(bad.hooks[kind] for kind in bad.kinds)), bench.against, str(ran)))
    if good.skipped or not ran:
        ended = early(bad, good, bench.against, way)
        return ended or doubtful(good.run, "the corrected program runs no forward hook either")
    why = f"a forward hook on {', '.join(sorted(bad.kinds))} does not run in {bad.skipped} of {total} calls"
    return Outcome(Verdict.CONFIRMED, why, tuple(rows), way.label)


def early(bad: Calls, good: Calls, against: str, way: Way) -> Outcome | None:
    """Confirmed where both programs end in the same error, and only in the corrected one a hook ran before that."""
    if good.skipped or not bad.run.trouble or bad.run.trouble != good.run.trouble:
        return None
    names = ", ".join(sorted(bad.kinds))
    ran = sum(good.earlier[kind] for kind in bad.kinds)
    if not ran or any(bad.earlier[kind] for kind in bad.kinds):
        return None
    row = Evidence(f"hooks before forward that ran on {names}", "0", against, str(ran))
    why = f"no hook runs before {names}, which ends in {bad.run.trouble}"
    return Outcome(Verdict.CONFIRMED, why, (row,), way.label)
