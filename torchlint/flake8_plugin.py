"""torchlint in flake8's clothes: the same findings at the same places as the command line gives.

flake8 finds the plugin by its entry point, with no configuration. Its own options `--select`,
`--ignore` and `--disable-noqa` work; so does [tool.torchlint] in pyproject.toml.
"""
from __future__ import annotations

import argparse
import ast
import functools
import os
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from torchlint import __version__
from torchlint.builtin import every_rule
from torchlint.config import ConfigError
from torchlint.discover import excluded
from torchlint.engine import check, roots, unchecked
from torchlint.files import STDIN, Source, show
from torchlint.findings import Finding
from torchlint.project import Project
from torchlint.select import Selection, configured, select


class Plugin:
    """One file of a flake8 run."""

    name = "torchlint"
    version = __version__

    select: ClassVar[tuple[str, ...] | None] = None
    preview: ClassVar[bool | None] = None
    noqa: ClassVar[bool] = True
    paths: ClassVar[tuple[str, ...]] = ()

    def __init__(self, tree: ast.Module, filename: str, lines: Sequence[str]) -> None:
        self._tree = tree
        self._path = STDIN if filename in ("-", "stdin") else filename
        self._text = "".join(lines)

    @staticmethod
    def add_options(manager: Any) -> None:
        """Add our options to flake8's."""
        manager.add_option(
            "--torchlint-select",
            comma_separated_list=True,
            parse_from_config=True,
            default=[],
            help="torchlint rules to run: codes, prefixes, names or ALL (default: those on by default)",
        )
        manager.add_option(
            "--torchlint-preview",
            action="store_true",
            parse_from_config=True,
            default=False,
            help="run torchlint's preview rules as well",
        )

    @classmethod
    def parse_options(cls, options: argparse.Namespace) -> None:
        """Take over what flake8 has read; an unknown rule ends the run with one line."""
        cls.select = tuple(options.torchlint_select) or None
        cls.preview = options.torchlint_preview or None
        cls.noqa = not options.disable_noqa
        cls.paths = tuple(options.filenames or ())
        _selection.cache_clear()
        _passed_over.cache_clear()
        _project.cache_clear()
        try:
            _selection(os.getcwd(), cls.select, cls.preview)
        except ConfigError as error:
            raise SystemExit(f"torchlint: error: {error}") from None

    def run(self) -> Iterator[tuple[int, int, str, type[Plugin]]]:
        """Yield (line, column counted from 0, "CODE message", type), as flake8 wants it."""
        for finding in self._findings():
            # flake8 adds 1 to columns.
            yield finding.span.line, finding.span.column - 1, f"{finding.code} {finding.message}", type(self)

    def _findings(self) -> list[Finding]:
        path = self._path if self._path == STDIN else show(self._path)
        try:
            folder = os.getcwd() if path == STDIN else os.path.dirname(os.path.abspath(path))
            if path != STDIN and _passed_over(os.path.abspath(path), folder):
                return []
            selection = _selection(folder, self.select, self.preview)
        except ConfigError as error:
            return [unchecked(path, str(error))]
        source = Source(path, self._text).with_tree(self._tree)
        return check(source, selection, _project(self.paths), noqa=self.noqa, named=False)


@functools.cache
def _selection(folder: str, chosen: tuple[str, ...] | None, preview: bool | None) -> Selection:
    """The rules for files in `folder`: those of its configuration, or those that flake8's options name."""
    known = every_rule()
    return select(configured([folder], known).changed(select=chosen, preview=preview), known)


@functools.cache
def _passed_over(path: str, folder: str) -> bool:
    """Whether the configuration of a file's folder excludes it: flake8 finds the files without asking us."""
    options = configured([folder], every_rule())
    return excluded(path, options.exclude, options.base)


@functools.cache
def _project(paths: tuple[str, ...]) -> Project:
    """The project of one run."""
    return Project(roots(paths))
