"""What the rules look at that only running the code can decide: autograd Functions, and Modules.

In place of `check`, each of these rules gets one that names every class to be examined. What the
experiment does not confirm is never reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from torchlint.builtin import every_rule
from torchlint.commands.check import Choices
from torchlint.confirmed import CONTRACT, RUNTIME
from torchlint.model import ClassInfo, FileModel
from torchlint.rule import Hit, Rule

CODES = frozenset(rule.meta.code for rule in RUNTIME)


def functions(model: FileModel) -> Iterator[Hit]:
    """Every autograd Function of the file with a backward of its own."""
    for cls in named_classes(model):
        if cls.is_function and {"forward", "backward"} <= cls.methods.keys():
            yield Hit(cls.node, f"the backward of `{cls.node.name}` is not the derivative of its forward")


def modules(model: FileModel) -> Iterator[Hit]:
    """Every Module of the file with a forward of its own."""
    for cls in named_classes(model):
        if cls.is_module and "forward" in cls.methods:
            yield Hit(cls.node, f"`{cls.node.name}` breaks what torch and its users rely on")


def named_classes(model: FileModel) -> Iterator[ClassInfo]:
    """Classes that can be had by name: those at the top level."""
    top = {id(node) for node in model.source.tree.body}
    return (cls for cls in model.classes if id(cls.node) in top)


CHECKS: dict[str, Callable[[FileModel], Iterator[Hit]]] = {"TL313": functions, "TL428": modules}
WORDS = {"TL313": ("Function",), "TL428": ("forward",)}


def rules(choices: Choices, check_modules: bool) -> tuple[Rule, ...]:
    """All rules, those of this module with their candidates.

    Modules are examined only if that is asked for, by flag or by the rule's code or name: it takes time.
    """
    asked = {word.lower() for word in (*(choices.select or ()), *choices.extend_select)}
    meta = CONTRACT.meta
    wanted = check_modules or bool(asked & {meta.code.lower(), meta.name})
    found = []
    for rule in every_rule():
        code = rule.meta.code
        if code in CODES and (wanted or code != meta.code):
            default = rule.meta.default or check_modules
            seen = replace(rule.meta, runtime=False, default=default, triggers=WORDS[code])
            rule = replace(rule, meta=seen, check=CHECKS[code])
        found.append(rule)
    return tuple(found)
