"""Analyses that need one another: what was learned while one of them was cut short is forgotten."""
from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchlint.model.events import Flow

MAX_ROUNDS = 2  # questions for whose sake one result is made again
MAX_TRIES = 2  # classes that need each other in a circle would be analysed again and again
MAX_WORK = 60_000  # statements followed for one file, those of its helpers in other files included
NOTHING = sys.maxsize


class Session:
    """The state of nested analyses of one project.

    An analysis that meets one that is still running gets an empty answer (a cut). What was concluded from
    it holds only until the running one is done, so that the order of questions does not change the answers.
    """

    def __init__(self) -> None:
        self.moments = 0  # answers that hold for the moment only
        self.depth = 0  # flows that wait for one another
        self.work = 0  # statements followed since the current file was begun
        self.followed: dict[Hashable, Flow] = {}  # calls of project functions that were followed already
        self._level = 0
        self._lowest = NOTHING  # the outermost running analysis that the current one has met
        self._running: dict[Hashable, int] = {}
        self._tries: dict[Hashable, int] = {}
        self._rounds: dict[Hashable, int] = {}
        self._provisional: list[tuple[int, Callable[[], object]]] = []
        self._pending: dict[Hashable, int] = {}  # what is provisional -> the level that it waits for

    @property
    def tired(self) -> bool:
        """Whether calls are no longer followed: real files need half of this, and mazes of calls have no end."""
        return self.work > MAX_WORK

    def meets(self, what: Hashable) -> bool:
        """Whether `what` is being analysed already; if so the caller's conclusions are provisional."""
        level = self._running.get(what)
        if level is None:
            return False
        self.cut(level)
        return True

    def reads(self, what: Hashable) -> None:
        """Note that a remembered answer is used: if it is provisional, so is what is concluded from it."""
        level = self._pending.get(what)
        if level is not None:
            self.cut(level)

    def cut(self, level: int = 1) -> None:
        """Note an empty answer that a running analysis (by default the outermost) would have filled."""
        self._lowest = min(self._lowest, level)

    @contextmanager
    def nested(self, what: Hashable, forget: Callable[[], object], *, deeper: bool = True) -> Iterator[None]:
        """One analysis of `what`; `forget` undoes its result if it turns out to be provisional."""
        self._level += 1
        mine, outer, self._lowest = self._level, self._lowest, NOTHING
        self._running[what] = mine
        self.depth += deeper
        try:
            yield
        finally:
            self.depth -= deeper
            self._level -= 1
            del self._running[what]
            self._settle(mine)
            if self._lowest < mine:
                self._keep_until(what, self._lowest, forget)
            self._lowest = min(outer, self._lowest if self._lowest < mine else NOTHING)

    @contextmanager
    def remembering(self, key: Hashable) -> Iterator[Callable[[], bool]]:
        """Following a call: the result is kept in `followed`, no longer than what it rests on.

        Gives a function to ask afterwards whether it may be kept at all.
        """
        outer, self._lowest = self._lowest, NOTHING
        before = self.moments
        try:
            yield lambda: self.moments == before
        finally:
            mine, self._lowest = self._lowest, min(outer, self._lowest)
            if mine != NOTHING and self.moments == before:
                self._provisional.append((mine, lambda: self.followed.pop(key, None)))
                self._pending[key] = mine

    def _settle(self, level: int) -> None:
        """Forget what waited for the analysis that is done."""
        if level == 1:
            self._tries.clear()
        if not self._provisional:
            return
        waiting, self._provisional = self._provisional, []
        self._pending = {what: until for what, until in self._pending.items() if until < level}
        for until, forget in waiting:
            if until >= level:
                forget()
            else:
                self._provisional.append((until, forget))

    def _keep_until(self, what: Hashable, level: int, forget: Callable[[], object]) -> None:
        """Forget a provisional result when `level` is done; one that was made often, when the question is answered."""
        tried = self._tries.get(what, 0)
        self._tries[what] = tried + 1
        until = level if tried < MAX_TRIES else 1
        if until == 1:
            rounds = self._rounds.get(what, 0)
            self._rounds[what] = rounds + 1
            if rounds >= MAX_ROUNDS:
                return
        self._provisional.append((until, forget))
        self._pending[what] = until
