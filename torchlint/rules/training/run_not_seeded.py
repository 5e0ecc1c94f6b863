"""A training script whose random numbers differ from run to run.

Weights, the order of batches, dropout and augmentation come from up to three generators: torch's, numpy's and
that of `random`. One that is not seeded makes two runs of the same code differ, and a good or bad result cannot
be looked into again.

Seed every generator that the script draws from, once, before the model is made. Frameworks have one function
for it: `seed_everything`, `set_seed`.

No claim: two runs that differ are what an unseeded script is expected to give.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.findings import Severity
from torchlint.model import FileModel, FunctionInfo, Kind, Value, training
from torchlint.rule import Example, Hit, Meta

META = Meta("TL531", "run-not-seeded", Severity.ADVICE, default=False, triggers=("backward",))
CLAIM = None
KINDS = {
    "torch.manual_seed": "torch", "torch.random.manual_seed": "torch", "numpy.random.seed": "numpy",
    "random.seed": "random", "torch.cuda.manual_seed": "", "torch.cuda.manual_seed_all": "",
    "torch.cuda.random.manual_seed": "", "torch.cuda.random.manual_seed_all": "",
}
# Functions of numpy.random and random that make or read a generator instead of drawing from the global one.
OWN = {"default_rng", "RandomState", "Generator", "SeedSequence", "PCG64", "Random", "SystemRandom", "get_state",
       "set_state", "getstate", "setstate"}

EXAMPLES = [
    Example(
        bad="""
        import torch

        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  #!
        for x in torch.randn(4, 8, 3):
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()
        """,
        good="""
        import torch

        torch.manual_seed(0)
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x in torch.randn(4, 8, 3):
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()
        """,
    ),
    Example(
        bad="""
        import numpy as np
        import torch


        def set_seed(seed):
            torch.manual_seed(seed)
            torch.cuda.manual_seed_all(seed)


        def main():
            set_seed(0)
            model = torch.nn.Linear(3, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            order = np.random.permutation(4)  #!
            for i in order:
                optimizer.zero_grad()
                model(torch.full((2, 3), float(i))).pow(2).mean().backward()
                optimizer.step()


        if __name__ == "__main__":
            main()
        """,
        good="""
        import numpy as np
        import torch


        def set_seed(seed):
            np.random.seed(seed)
            torch.manual_seed(seed)
            torch.cuda.manual_seed_all(seed)


        def main():
            set_seed(0)
            model = torch.nn.Linear(3, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            order = np.random.permutation(4)
            for i in order:
                optimizer.zero_grad()
                model(torch.full((2, 3), float(i))).pow(2).mean().backward()
                optimizer.step()


        if __name__ == "__main__":
            main()
        """,
    ),
]

CLEAN = [
    """
    import numpy as np
    import torch
    from lightning.fabric import seed_everything

    seed_everything(1)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.from_numpy(np.random.rand(2, 3)).float()).sum().backward()
    optimizer.step()
    """,
    """
    import numpy as np
    import torch

    torch.manual_seed(0)
    numbers = np.random.default_rng(0)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.from_numpy(numbers.random((2, 3))).float()).sum().backward()
    optimizer.step()
    """,
    """
    import torch


    def train(model, optimizer, batches):
        for x in batches:
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Scripts that train, and generators that they use and do not seed."""
    flow = model.flow()
    makes = [event for event in flow.of("make_optimizer") if event.args and has_weights(event.args[0])]
    if not makes or not flow.of("backward") or not flow.of("step"):
        return
    seeded = seeded_kinds(model, model.nodes(ast.Call))
    if seeded is None:
        return
    if "torch" not in seeded:
        yield Hit(training.place_of(model, makes[0]), "nothing seeds torch, so no two runs agree; call `manual_seed`")
        return
    for kind in ("numpy", "random"):
        use = first_use(model, kind) if kind not in seeded else None
        if use is not None:
            yield Hit(use, f"torch is seeded, but not `{kind}`, which this draws from; seed it as well")


def has_weights(params: Value) -> bool:
    """Whether an optimizer is given parameters of modules, which start at random, and not tensors made by hand."""
    return params.kind is Kind.PARAMETERS or any(
        part.kind is Kind.PARAMETERS or part.role == "parameter" for part in params.parts()
    )


def seeded_kinds(model: FileModel, calls: list[ast.Call], depth: int = 0) -> set[str] | None:
    """The generators that some calls seed; None if one of them may seed what cannot be seen."""
    found: set[str] = set()
    for call in calls:
        last = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        name = model.name_of(call.func)
        if name in KINDS:
            found.add(KINDS[name])
        elif "seed" in last.lower():
            helper = model.function_named(call.func)
            inner = helper_kinds(helper, depth) if helper is not None else None
            if inner is None:
                if isinstance(call.func, ast.Attribute) and model.value(call.func.value).kind is Kind.RNG:
                    continue
                return None
            found |= inner
    return found


def helper_kinds(helper: FunctionInfo, depth: int) -> set[str] | None:
    """The generators that a function of the project seeds."""
    return seeded_kinds(helper.model, helper.calls, depth + 1) if depth < 3 else None


def first_use(model: FileModel, kind: str) -> ast.Call | None:
    """The first draw from the global generator of numpy or `random`."""
    prefix = {"numpy": "numpy.random.", "random": "random."}[kind]
    for call in model.nodes(ast.Call):
        name = model.name_of(call.func)
        if name.startswith(prefix) and name.count(".") == prefix.count(".") and name.rpartition(".")[2] not in OWN:
            return call
    return None
