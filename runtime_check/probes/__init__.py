"""One probe per claim. A probe takes a bench and returns an outcome."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from runtime_check import clock
from runtime_check.evidence import Outcome, Verdict, cannot_tell
from runtime_check.plan import Case

if TYPE_CHECKING:
    from runtime_check.probes.bench import Bench
    from runtime_check.sandbox import Guard

#: The module that tests a claim, by the claim's name; its function is called `probe`.
MODULES = {
    "Aliased": "aliased",
    "Anomaly": "anomaly",
    "BreaksContract": "contract",
    "CycleLeaks": "cycle_leaks",
    "Deadlocks": "deadlocks",
    "Equivalent": "equivalent",
    "ExecutesCode": "executes_code",
    "GradientsAccumulate": "gradients_accumulate",
    "GraphBreaks": "graph_breaks",
    "GraphGrows": "graph_grows",
    "HooksSkipped": "hooks_skipped",
    "MemoryGrows": "memory_grows",
    "MemoryHeld": "memory_held",
    "ModeLeaks": "mode_leaks",
    "NoEffect": "no_effect",
    "NoGradient": "no_gradient",
    "NotOptimized": "not_optimized",
    "NotRegistered": "not_registered",
    "OutputsDiffer": "outputs_differ",
    "Raises": "raises",
    "Slower": "slower",
    "WaitsEveryStep": "waits_every_step",
    "Warns": "warns",
    "WrongGradient": "wrong_gradient",
}


#: Rules that need another measurement than others of the same claim, and what is no rule: code -> module and function.
BY_RULE = {
    "reach-module": ("reach", "module"),
    "reach-function": ("reach", "function"),
    "reach-loop": ("reach", "loop"),
    "TL313": ("gradcheck", "probe"),
    "TL416": ("modules", "probe_hooks"),
    "TL424": ("modules", "probe_buffers"),
    "TL426": ("modules", "probe_samples"),
    "TL524": ("datasets", "probe_workers"),
    "TL525": ("datasets", "probe_item"),
    "TL610": ("critical", "probe"),
    "TL611": ("critical", "probe"),
    "TL612": ("critical", "probe"),
    "TL701": ("datasets", "probe_sampler"),
    "TL703": ("ranks", "probe_gradients"),
    "TL704": ("parallel", "probe_no_sync"),
    "TL706": ("ranks", "probe_samples"),
}


def place(case: Case) -> tuple[str, str]:
    """The module and the function that test the claim of a case. LookupError if none does."""
    module, function = BY_RULE.get(case.code) or (MODULES[case.claim.name], "probe")
    return f"{__name__}.{module}", function


def examine(case: Case, guard: Guard) -> Outcome:
    """Tests the claim of a case in this process. What goes wrong in the check itself is raised.

    Of several claims the first that is confirmed counts; they are refuted only if each of them is.
    """
    several = case.claim.each
    if len(several) == 1:
        return examine_one(replace(case, claim=several[0]), guard)
    end = clock.now() + case.seconds
    best: Outcome | None = None
    for claim in several:
        outcome = examine_one(replace(case, claim=claim, seconds=max(0.5, end - clock.now())), guard)
        if outcome.verdict is Verdict.CONFIRMED:
            return outcome
        if best is None or best.verdict is Verdict.REFUTED:
            best = outcome
    assert best is not None
    return best


def examine_one(case: Case, guard: Guard) -> Outcome:
    """Tests a single claim."""
    from runtime_check.probes.bench import Bench

    try:
        module, function = place(case)
    except LookupError:
        return cannot_tell(f"there is no check for the claim {case.claim.name}")
    probe: Callable[[Bench], Outcome] = getattr(importlib.import_module(module), function)
    return probe(Bench(case, guard))


def load_all() -> None:
    """Imports every probe, so that children need not."""
    for module in {*MODULES.values(), *(module for module, _ in BY_RULE.values())}:
        importlib.import_module(f"{__name__}.{module}")
