"""Analyses that need one another: what was learned while one of them was cut short is forgotten."""
from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchlint.model.events import Flow


MAX_TRIES = 2  # classes that need each other in a circle would be analysed again and again


class Session:
    """The state of nested analyses of one project.

    An analysis that meets itself gets an empty answer (`cut`). What others concluded from that empty
    answer holds only until the outermost analysis is done, so that the order of questions does not
    change the answers.
    """

    def __init__(self) -> None:
        self.depth = 0
        self.cut = 0
        self.followed: dict[Hashable, Flow] = {}  # calls of project functions that were followed already
        self._tries: dict[Hashable, int] = {}
        self._provisional: list[Callable[[], object]] = []

    @contextmanager
    def nested(self, what: Hashable, forget: Callable[[], object], *, deeper: bool = True) -> Iterator[None]:
        """One analysis of `what`; `forget` undoes its result if it turns out to be provisional."""
        before = self.cut
        self.depth += deeper
        try:
            yield
        finally:
            self.depth -= deeper
            if self.cut > before and self.depth:
                tried = self._tries.get(what, 0)
                self._tries[what] = tried + 1
                if tried < MAX_TRIES:
                    self._provisional.append(forget)
            if not self.depth:
                pending, self._provisional = self._provisional, []
                for undo in pending:
                    undo()
