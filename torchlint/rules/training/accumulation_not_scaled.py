"""Gradients summed over micro-batches without dividing by their number.

`backward()` adds into `.grad`, so n micro-batches with a mean loss give n times the gradient of one batch of the
same total size. The step is n times too long: a learning rate that was right for the large batch diverges.

Divide the loss by the number of micro-batches. Nothing is to be divided where the loss is a sum, where the
gradients are scaled before the step, or where the optimizer does not care about scale by design of the author.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.claims import WrongGradient
from torchlint.findings import Confidence, Safety, Severity
from torchlint.fixes import edits
from torchlint.fixes.expressions import source_of
from torchlint.model import Event, FileModel, Flow, Kind, training
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta("TL504", "accumulation-not-scaled", Severity.WARNING, stable=False, fix=Safety.UNSAFE,
            triggers=("backward",))
CLAIM = WrongGradient()
# Other ways to scale gradients.
HOOKS = ("register_hook", "register_post_accumulate_grad_hook", "_foreach_div_", "_foreach_mul_")

EXAMPLES = [
    Example(
        bad="""
        import torch

        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        accumulate = 4
        for i in range(4):
            loss = model(torch.ones(2, 3)).pow(2).mean()
            loss.backward()  #!
            if (i + 1) % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
        """,
        good="""
        import torch

        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        accumulate = 4
        for i in range(4):
            loss = model(torch.ones(2, 3)).pow(2).mean()
            (loss / accumulate).backward()
            if (i + 1) % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
        """,
    ),
]

CLEAN = [
    """
    import torch
    from torch import nn

    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    summed = nn.MSELoss(reduction="sum")
    for i in range(4):
        summed(model(torch.ones(2, 3)), torch.ones(2, 1)).backward()
        if (i + 1) % 2 == 0:
            for p in model.parameters():
                p.grad /= 4
            optimizer.step()
            optimizer.zero_grad()
    for i in range(4):
        (model(torch.ones(2, 3)).mean() * 0.5).backward()
        if (i + 1) % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
    """,
    """
    import torch

    net_g, net_d = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
    opt_g, opt_d = torch.optim.SGD(net_g.parameters(), 0.1), torch.optim.SGD(net_d.parameters(), 0.1)
    for i in range(4):
        opt_d.zero_grad()
        net_d(net_g(torch.ones(3, 2)).detach()).mean().backward()
        opt_d.step()
        if i % 2 == 0:
            opt_g.zero_grad()
            net_d(net_g(torch.ones(3, 2))).mean().backward()
            opt_g.step()
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Backwards in every iteration of a loop that steps and clears only in some, with nothing that scales."""
    yield from training.once(model, backwards(model))


def backwards(model: FileModel) -> Iterator[tuple[Event, Hit]]:
    """The backwards of every function that add up unscaled."""
    for _, flow in training.functions_first(model):
        for step in flow.of("step"):
            guards = training.periodic_guards(model, step)
            if not step.loops or not training.is_stepped(step) or not (guards or training.early_continue(model, step)):
                continue
            backward = accumulated(model, flow, step)
            if backward is not None:
                yield backward, Hit(
                    training.place_of(model, backward),
                    "micro-batches add up to a gradient that is too large; divide the loss by their number",
                    divided(model, backward, guards),
                    confidence=min(Confidence.LIKELY, step.target.sure),
                )


def accumulated(model: FileModel, flow: Flow, step: Event) -> Event | None:
    """The unscaled backward that runs in every iteration, where clearing goes with the step."""
    guards = set(training.periodic_guards(model, step))
    inside = flow.in_loop(step.loops[-1])

    def occasional(event: Event) -> bool:
        return bool(training.periodic_guards(model, event)) or training.early_continue(model, event)

    backwards = [event for event in inside if event.what == "backward"]
    clears = [event for event in inside if training.clears(event, step.target)]
    if not backwards or any(occasional(event) or guards & {n for n, _ in event.guards} for event in backwards):
        return None
    if not clears or not all(event.what == "zero_grad" and occasional(event) for event in clears):
        return None
    if any(model.calls_named(name) for name in HOOKS):
        return None
    if any(event.via.known or scales_gradients(event) for event in inside) or scaled_somewhere(model, step.loops[-1]):
        return None
    return backwards[0] if len(backwards) == 1 and backwards[0].target.attached else None


def scales_gradients(event: Event) -> bool:
    """Whether gradients are changed by hand (or clipped, which forgives their size)."""
    return event.what == "clip" or (event.what in ("inplace", "data_write") and event.target.role == "grad")


def scaled_somewhere(model: FileModel, loop: ast.AST) -> bool:
    """Whether anything with a graph is divided or multiplied in the loop, or a sum is asked for."""
    for node in ast.walk(loop):
        match node:
            case ast.BinOp(op=ast.Div() | ast.Mult()) | ast.AugAssign(op=ast.Div() | ast.Mult()):
                left = node.left if isinstance(node, ast.BinOp) else node.target
                if model.value(left).is_tensor or not model.value(left).known:
                    return True
            case ast.Call(
                func=ast.Attribute(attr="div" | "mul" | "div_" | "mul_" | "true_divide" | "backward" as name)
            ):
                if name != "backward" or node.args:
                    return True
            case ast.Call() as call:
                loss = model.value(call.func)
                made = loss.site if loss.kind is Kind.MODULE else call
                if isinstance(made, ast.Call) and any(
                    k.arg == "reduction" and isinstance(k.value, ast.Constant) and k.value.value != "mean"
                    for k in made.keywords
                ):
                    return True
    return False


def divided(model: FileModel, backward: Event, guards: list[ast.AST]) -> Repair | None:
    """The loss over the number that the steps are counted by."""
    place = training.place_of(model, backward)
    counts = [node.right for guard in guards if isinstance(guard, ast.If) for node in ast.walk(guard.test)
              if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod)
              and isinstance(model.parent(node), ast.Compare)]
    match place:
        case ast.Call(func=ast.Attribute(value=ast.Name() | ast.Attribute() | ast.Call() as loss)) if len(counts) == 1:
            if model.owner(counts[0]) is model.owner(place):
                count = source_of(model, counts[0])
                plain = isinstance(counts[0], (ast.Name, ast.Attribute, ast.Constant))
                text = f"({source_of(model, loss)} / {count if plain else f'({count})'})"
                return edits.repair("Divide the loss", edits.replace(model, loss, text))
    return None
