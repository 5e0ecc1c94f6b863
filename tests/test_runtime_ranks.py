"""Code for several processes that finds a process group when it is called: what two ranks show."""

from __future__ import annotations

import textwrap
import time

import pytest

pytest.importorskip("torch")

from runtime_check import clock
from runtime_check.evidence import Outcome, Verdict
from runtime_check.plan import from_finding
from runtime_check.pool import Pool
from torchlint.engine import lint_source
from torchlint.rule import all_rules

RULES = {rule.meta.code: rule for rule in all_rules()}


def outcome(pool: Pool, text: str, code: str) -> Outcome:
    """The outcome of the one finding of a rule in a file."""
    text = textwrap.dedent(text).lstrip("\n")
    rule = RULES[code]
    (finding,) = lint_source(text, rules=[rule])
    assert rule.claim is not None
    ((_, found),) = pool.run([from_finding(finding, rule.claim, text, 0, seconds=25, path="file.py")])
    return found


BARRIERS = {
    "asked": """
        import torch
        import torch.distributed as dist


        def save(model, path):
            if dist.get_rank() == 0:
                torch.save(model.state_dict(), path)
                dist.barrier()
        """,
    "left early": """
        import torch
        import torch.distributed as dist


        def mean_over_ranks(values):
            if dist.get_rank() != 0:
                return values
            dist.all_reduce(values)
            return values / dist.get_world_size()
        """,
    "kept": """
        import torch
        import torch.distributed as dist


        class Trainer:
            def __init__(self, model, rank):
                self.model = model
                self.rank = rank

            def log(self, loss):
                if self.rank == 0:
                    dist.all_reduce(loss)
                    print(loss.item())
        """,
}


@pytest.mark.parametrize("text", BARRIERS.values(), ids=BARRIERS)
def test_a_function_that_finds_a_group_is_run_as_two_ranks(pool: Pool, text: str) -> None:
    found = outcome(pool, text, "TL702")
    assert found.verdict is Verdict.CONFIRMED, found
    assert "of 2 ranks 1 finish" in found.why


def test_ranks_that_never_come_to_the_line_refute_nothing(pool: Pool) -> None:
    found = outcome(
        pool,
        """
        import torch
        import torch.distributed as dist


        def log(loss, verbose=False):
            if not verbose:
                return
            if dist.get_rank() == 0:
                dist.all_reduce(loss)


        def main():
            dist.init_process_group("gloo")
            log(torch.ones(1))
            dist.destroy_process_group()
        """,
        "TL702",
    )
    assert found.verdict is not Verdict.REFUTED, found


BYPASSED = """
import torch
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = {layer}

    def forward(self, x):
        return self.fc({x})


def train(loader, rank):
    model = DDP(Net().to(rank), device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        loss = model.module(x).pow(2).mean()
        loss.backward()
        optimizer.step()
"""


def test_ranks_get_data_of_their_own(pool: Pool) -> None:
    found = outcome(pool, BYPASSED.format(layer="torch.nn.Linear(8, 4)", x="x"), "TL703")
    assert found.verdict is Verdict.CONFIRMED, found


def test_equal_data_refutes_nothing(pool: Pool) -> None:
    text = BYPASSED.format(layer="torch.nn.Embedding(4, 2)", x="torch.arange(4)")
    found = outcome(pool, text.replace("model.module(x)", "model.module(3)"), "TL703")
    assert found.verdict is Verdict.CANNOT_TELL and "same data" in found.why, found


def test_what_a_rank_waits_for_a_processor_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    from runtime_check.probes import deadlocks

    long_ago = time.monotonic() - 2 * deadlocks.SECONDS
    monkeypatch.setattr(clock, "waited", lambda process: 0.0)
    assert not deadlocks.in_time(long_ago, {}, [1, 2])
    monkeypatch.setattr(clock, "waited", lambda process: {1: 0.5, 2: 2.0}[process])
    waited: dict[int, float] = {}
    assert deadlocks.in_time(long_ago, waited, [1, 2])
    assert deadlocks.in_time(long_ago, waited, [1]), "the other has ended, and what it waited for counts as before"
    assert not deadlocks.in_time(long_ago - clock.MOST * deadlocks.SECONDS, waited, [1, 2]), "there is an end"
