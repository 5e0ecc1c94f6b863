"""One probe per claim. A probe takes a bench and returns an outcome."""

from __future__ import annotations

import importlib

from runtime_check.evidence import Outcome, cannot_tell
from runtime_check.plan import Case
from runtime_check.probes.bench import Bench
from runtime_check.sandbox import Guard

#: The module that tests a claim, by the claim's name; its function is called `probe`.
MODULES = {
    "Aliased": "aliased",
    "Anomaly": "anomaly",
    "CycleLeaks": "cycle_leaks",
    "Deadlocks": "deadlocks",
    "Equivalent": "equivalent",
    "ExecutesCode": "executes_code",
    "GradientsAccumulate": "gradients_accumulate",
    "GraphBreaks": "graph_breaks",
    "GraphGrows": "graph_grows",
    "HooksSkipped": "hooks_skipped",
    "MemoryGrows": "memory_grows",
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


def examine(case: Case, guard: Guard) -> Outcome:
    """Tests the claim of a case in this process. What goes wrong in the check itself is raised."""
    module = MODULES.get(case.claim.name)
    if module is None:
        return cannot_tell(f"there is no check for the claim {case.claim.name}")
    outcome: Outcome = importlib.import_module(f"{__name__}.{module}").probe(Bench(case, guard))
    return outcome


def load_all() -> None:
    """Imports every probe, so that children need not."""
    for module in MODULES.values():
        importlib.import_module(f"{__name__}.{module}")
