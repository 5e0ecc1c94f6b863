"""A clip moves to where a gradient scaler has unscaled the gradients and the optimizer has not used them yet."""
from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING

from torchlint.fixes.expressions import Edits, operand, source_of
from torchlint.fixes.reorder import guard_of, reorder, sibling_of
from torchlint.fixes.statements import insert_before
from torchlint.model import training

if TYPE_CHECKING:
    from torchlint.model import Event, FileModel, Flow


def clip_before_scaled_step(
    model: FileModel, flow: Flow, clip: Event, backward: Event, step: Event, never: Iterable[ast.AST]
) -> Edits:
    """Move a clip before `scaler.step(optimizer)`, with `scaler.unscale_(optimizer)` before it where that is missing.

    () where the two do not stand in one block, for then one may run without the other, and a second `unscale_`
    without a step is an error; and where the move would pass one of the nodes that it must `never` pass.
    """
    node, call = training.place_of(model, clip), training.place_of(model, step)
    if not (model.has(node) and model.has(call)) or model.owner(node) is not model.owner(call):
        return ()
    moved, target = model.statement(node), model.statement(call)
    guard = guard_of(model, moved)
    if target is not (sibling_of(model, moved, call) or (guard and sibling_of(model, guard, call))):
        return ()
    first: Edits = ()
    match call, _unscales(flow, backward, step):
        case _, [one]:
            if flow.events.index(clip) < flow.events.index(one):
                behind = reorder(model, node, after=training.place_of(model, one), never=never)
                if behind:
                    return behind
        case ast.Call(func=ast.Attribute(value=scaler, attr="step"), args=[optimizer, *_]), []:
            first = insert_before(model, target, f"{operand(model, scaler)}.unscale_({source_of(model, optimizer)})")
        case _:
            return ()
    moving = reorder(model, node, before=call, never=never)
    return (*first, *moving) if moving else ()


def _unscales(flow: Flow, backward: Event, step: Event) -> list[Event] | None:
    """Where the gradients are unscaled: nowhere, or once between backward and step; None if elsewhere or unclear."""
    found = [event for event in flow.of("unscale") if not event.excludes(step)]
    if not found:
        return []
    between = flow.events[flow.events.index(backward) : flow.events.index(step)]
    fits = len(found) == 1 and found[0] in between and training.same(found[0].target, step.target)
    return found if fits and set(found[0].guards) <= set(step.guards) else None
