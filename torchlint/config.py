"""[tool.torchlint] in pyproject.toml, and the options of one run. No rule is looked up here."""
from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torchlint.discover import is_pattern
from torchlint.files import show

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found,unused-ignore]

VERSION = re.compile(r"\d+\.\d+(\.\d+)?")


class ConfigError(Exception):
    """A configuration or selection that cannot be used; the message is one line that says where."""


@dataclass(frozen=True)
class Options:
    """What to look for and where: configuration and command line together.

    `base` is the directory that the patterns of `per_file` and `exclude` are relative to.
    """

    select: tuple[str, ...] | None = None  # None: the default rules
    extend_select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    per_file: tuple[tuple[str, tuple[str, ...]], ...] = ()  # (gitignore pattern, selectors ignored there)
    exclude: tuple[str, ...] = ()
    force_exclude: bool = False  # also for files that are named
    preview: bool = False
    torch_version: str = ""  # "": any version, all rules apply
    factories: tuple[tuple[str, str], ...] = ()  # for confirm: ("pkg.mod:Net", "tests/made.py:make_net")
    jobs: int = 0  # 0: as many as there are processors
    base: str = "."
    file: str = ""  # the configuration file that was read, if one was

    def changed(
        self,
        *,
        select: Iterable[str] | None = None,
        extend_select: Iterable[str] = (),
        ignore: Iterable[str] = (),
        preview: bool | None = None,
        jobs: int | None = None,
    ) -> Options:
        """These options with those of a command line on top.

        A `select` there replaces what the file says of `select`, `extend-select` and `ignore`;
        the other lists add to it.
        """
        start = self if select is None else replace(self, select=tuple(select), extend_select=(), ignore=())
        return replace(
            start,
            extend_select=(*start.extend_select, *extend_select),
            ignore=(*start.ignore, *ignore),
            preview=start.preview if preview is None else preview,
            jobs=start.jobs if jobs is None else jobs,
        )


def load(paths: Iterable[str | os.PathLike[str]] = (), isolated: bool = False) -> Options:
    """The options of the nearest pyproject.toml that has a [tool.torchlint] table.

    It is searched from the common ancestor of `paths` (or the working directory) upwards, not beyond
    the root of the git repository. ConfigError if it cannot be read or says what it cannot say.
    """
    if isolated:
        return Options(base=os.getcwd())
    start = common_folder(paths)
    for folder in (start, *start.parents):
        file = folder / "pyproject.toml"
        if file.is_file():
            table = _table(file)
            if table is not None:
                return parse(table, file)
        if (folder / ".git").exists():
            break
    return Options(base=str(start))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """ "; did you mean 'x'?" if a known word is near, else ""."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def common_folder(paths: Iterable[str | os.PathLike[str]]) -> Path:
    """The deepest directory that holds all `paths`; the working directory for no paths."""
    absolute = [os.path.abspath(path) for path in paths]
    if not absolute:
        return Path.cwd()
    folders = [path if os.path.isdir(path) else os.path.dirname(path) for path in absolute]
    try:
        return Path(os.path.commonpath(folders))
    except ValueError:  # several drives on Windows
        return Path.cwd()


def _table(file: Path) -> dict[str, Any] | None:
    """The [tool.torchlint] table of a pyproject.toml; None if there is none."""
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{show(file)}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{show(file)}: {' '.join(str(error).split())}") from None
    tool = data.get("tool")
    table = tool.get("torchlint") if isinstance(tool, dict) else None
    if table is not None and not isinstance(table, dict):
        raise ConfigError(f"{show(file)}: tool.torchlint: must be a table, not {_kind(table)}")
    return table


def parse(table: Mapping[str, Any], file: str | os.PathLike[str]) -> Options:
    """The options in a [tool.torchlint] table. ConfigError names `file` and the key at fault."""
    options: dict[str, Any] = {"base": os.path.dirname(os.path.abspath(file)), "file": os.fspath(file)}
    for key, value in table.items():
        name, read = _KEYS.get(key, ("", None))
        if read is None:
            raise ConfigError(f"{show(file)}: tool.torchlint.{key}: unknown key{did_you_mean(key, _KEYS)}")
        try:
            options[name] = read(value)
        except ConfigError as error:
            raise ConfigError(f"{show(file)}: tool.torchlint.{key}: {error}") from None
    return Options(**options)


def _strings(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ConfigError(f"must be a list of strings, not {_kind(value)}")
    for item in value:
        if not isinstance(item, str):
            raise ConfigError(f"must be a list of strings, has {_kind(item)}")
    return tuple(value)


def _patterns(value: object) -> tuple[str, ...]:
    for pattern in (found := _strings(value)):
        if not is_pattern(pattern):
            raise ConfigError(f"{pattern!r} is not a gitignore pattern")
    return found


def _per_file(value: object) -> tuple[tuple[str, tuple[str, ...]], ...]:
    if not isinstance(value, dict):
        raise ConfigError(f"must be a table of pattern = [codes], not {_kind(value)}")
    found = []
    for pattern, codes in value.items():
        _patterns([pattern])
        try:
            found.append((pattern, _strings(codes)))
        except ConfigError as error:
            raise ConfigError(f"{pattern!r} {error}") from None
    return tuple(found)


def _confirm(value: object) -> tuple[tuple[str, str], ...]:
    """The factories of [tool.torchlint.confirm.factories]."""
    if not isinstance(value, dict):
        raise ConfigError(f"must be a table, not {_kind(value)}")
    for key in value:
        if key != "factories":
            raise ConfigError(f"unknown key {key!r}{did_you_mean(key, ['factories'])}")
    factories = value.get("factories", {})
    if not isinstance(factories, dict):
        raise ConfigError(f"factories: must be a table of name = place, not {_kind(factories)}")
    for name, place in factories.items():
        if not re.fullmatch(r"[\w.]+:[\w.]+", name):
            raise ConfigError(f'factories: {name!r} is no name such as "pkg.mod:Net"')
        if not isinstance(place, str) or not re.fullmatch(r".+\.py:\w+", place):
            raise ConfigError(f'factories: {name!r} needs a place such as "tests/made.py:make_net", not {_kind(place)}')
    return tuple(factories.items())


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"must be true or false, not {_kind(value)}")
    return value


def _jobs(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"must be a whole number of at least 1, not {_kind(value)}")
    return value


def _torch_version(value: object) -> str:
    if not isinstance(value, str) or not VERSION.fullmatch(value):
        raise ConfigError(f'must be a version such as "2.6", not {_kind(value)}')
    return value


def _kind(value: object) -> str:
    """A value of TOML as an error names it."""
    match value:
        case bool():
            return str(value).lower()
        case str() | int() | float():
            return repr(value)
        case list():
            return "a list"
        case dict():
            return "a table"
    return str(value)


_KEYS = {
    "select": ("select", _strings),
    "extend-select": ("extend_select", _strings),
    "ignore": ("ignore", _strings),
    "per-file-ignores": ("per_file", _per_file),
    "exclude": ("exclude", _patterns),
    "preview": ("preview", _truth),
    "torch-version": ("torch_version", _torch_version),
    "jobs": ("jobs", _jobs),
    "confirm": ("factories", _confirm),
}
