"""What loading on demand asks of a text, worked out once: its tree, its statements, and which of them give a name.

A file of a large library reads dozens of others of it, and to read those takes longer than to run what is asked of
them. Outlines are shared by the programs of an experiment; the server process makes those of files that an
experiment has loaded, so that the children that it forks later have them. Nothing is run here.
"""
from __future__ import annotations

import ast
import gc
import io
import os
import tokenize
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import CodeType

from runtime_check.statements import (
    Step,
    future_flags,
    guarded_lines,
    is_patch,
    is_star,
    lasts,
    statements_in,
    steps,
    without_docs,
)

MOST = 6_000_000  # characters of all texts that a process keeps the outlines of
LARGEST = 1_000_000  # of one text that is read ahead


@dataclass(frozen=True)
class Outline:
    """A parsed text. Its tree is shared: whoever wants another one copies it."""

    tree: ast.Module
    steps: list[Step]
    flags: int  # of the compiler
    guarded_lines: frozenset[int]
    binding: dict[str, list[Step]] = field(default_factory=dict)
    touching: dict[str, list[Step]] = field(default_factory=dict)
    stars: list[ast.ImportFrom] = field(default_factory=list)
    lasting: set[int] = field(default_factory=set)  # steps whose names are the same in every run
    codes: dict[int, CodeType] = field(default_factory=dict)  # of steps that were run

    @property
    def patches(self) -> list[Step]:
        """The statements that change something in an imported module."""
        return [step for step in self.steps if is_patch(step.node) and not step.main]

    def code(self, step: Step, path: str) -> CodeType:
        """A statement, compiled with the file's name and lines; if it is one of this text, once."""
        own = self.steps[step.index].node is step.node
        found = self.codes.get(step.index) if own else None
        if found is None:
            module = ast.Module(body=[step.node], type_ignores=[])
            found = compile(module, path, "exec", flags=self.flags, dont_inherit=True)
            if own:
                self.codes[step.index] = found
        return found


_known: dict[tuple[str, str], Outline] = {}  # by path and text, what was asked for last at the end


def outline(text: str, path: str) -> Outline:
    """The outline of a text. SyntaxError or ValueError if it cannot be parsed."""
    key = path, text
    found = _known.pop(key, None) or made(text, path)
    _known[key] = found
    size = sum(len(one) for _, one in _known)
    while size > MOST and len(_known) > 1:
        oldest = next(iter(_known))
        size -= len(oldest[1])
        del _known[oldest]
    return found


def paths() -> tuple[str, ...]:
    """The files of which this process has outlines."""
    return tuple(dict.fromkeys(path for path, _ in _known))


def made(text: str, path: str) -> Outline:
    """A new outline."""
    tree = without_docs(ast.parse(text, filename=path), text)
    found = Outline(tree, steps(tree), future_flags(tree), frozenset(guarded_lines(tree)))
    for step in found.steps:
        for name in step.binds:
            found.binding.setdefault(name, []).append(step)
        for name in step.touches:
            found.touching.setdefault(name, []).append(step)
        if not isinstance(step.node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            stars = (item for item in statements_in(step.node) if isinstance(item, ast.ImportFrom) and is_star(item))
            found.stars.extend(sorted(stars, key=lambda item: item.lineno))
    defined = {name for step in found.steps if isinstance(step.node, DEFINITIONS) for name in step.binds}
    # `f = cached(f)` lasts as `f` does: made anew, it would not find the one that it was made of.
    found.lasting.update(step.index for step in found.steps if lasts(step.node) or step.binds & defined)
    return found


DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def read_ahead(files: Iterable[str]) -> None:
    """Makes the outlines of files that an experiment has loaded. What cannot be read or parsed is passed over."""
    for path in files:
        try:
            if path.endswith(".py") and os.path.isfile(path) and os.path.getsize(path) <= LARGEST:
                outline(decode(Path(path).read_bytes()), path)
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            continue
    gc.freeze()  # they stay: the children's collections need not look at them


@lru_cache(maxsize=8)
def parsed(text: str) -> ast.Module:
    """The tree of a text that is looked at again and again. It is shared: nobody changes it."""
    return ast.parse(text)


def decode(data: bytes) -> str:
    """Text of a Python file: its declared encoding, else UTF-8; bytes that do not fit are replaced."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return data.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError):
        return data.decode("utf-8", errors="replace")
