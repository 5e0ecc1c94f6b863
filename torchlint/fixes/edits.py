"""What rules build their fixes from: each function takes a model and nodes and returns edits.

A function returns () where it cannot do what is asked; `repair` then offers no fix at all.
"""
from __future__ import annotations

from torchlint.findings import Edit, Safety
from torchlint.fixes.arguments import add_keyword_argument, remove_argument
from torchlint.fixes.blocks import wrap_in_with
from torchlint.fixes.expressions import (
    append_method_call,
    drop_method_call,
    fit,
    generator_to_list,
    in_fstring,
    operand,
    parens,
    rename_attribute,
    rename_definition,
    rename_keyword,
    replace,
    replace_callee,
    source_of,
    unwrap_call,
    wrap_call,
)
from torchlint.fixes.names import rename_parameter
from torchlint.fixes.statements import (
    add_decorator,
    insert_after,
    insert_before,
    insert_first_in_body,
    insert_last_in_body,
    move_statement,
    remove,
    siblings,
)
from torchlint.rule import Repair

__all__ = [
    "add_decorator",
    "add_keyword_argument",
    "append_method_call",
    "drop_method_call",
    "fit",
    "generator_to_list",
    "in_fstring",
    "insert_after",
    "insert_before",
    "insert_first_in_body",
    "insert_last_in_body",
    "move_statement",
    "operand",
    "parens",
    "remove",
    "remove_argument",
    "rename_attribute",
    "rename_definition",
    "rename_keyword",
    "rename_parameter",
    "repair",
    "replace",
    "replace_callee",
    "siblings",
    "source_of",
    "unwrap_call",
    "wrap_call",
    "wrap_in_with",
]


def repair(
    title: str, *groups: tuple[Edit, ...], imports: tuple[str, ...] = (), safety: Safety | None = None
) -> Repair | None:
    """One fix made of groups of edits; None if there is no group or one of them could not be made."""
    if not groups or not all(groups):
        return None
    return Repair(title, tuple(edit for group in groups for edit in group), imports, safety)
