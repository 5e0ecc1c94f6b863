"""The gate: which files met on a walk are worth parsing at all.

A file can only hold a finding if torch can be met in it: it names torch, imports something that does, or uses words
of training loops on values that come from elsewhere. Read by pattern, so it may let too much through, never too little.
"""
from __future__ import annotations

import re
from pathlib import Path

from torchlint.files import Source, UnreadableFile, read_source
from torchlint.knowledge import third_party_packages
from torchlint.project import Project, absolute, module_name

_JOINED = re.compile(r"(?m)^([^#\r\n]*)\\(?:\r\n|\r|\n)")  # not after a comment
_IMPORT = re.compile(r"(?:^|[\r\n;:])[ \t\f]*import\b([^\r\n;#]*)")
_FROM = re.compile(
    r"(?:^|[\r\n;:])[ \t\f]*from\b[ \t\f]*([.\w \t\f]+?)[ \t\f]*\bimport\b[ \t\f]*(\((?:[^)#]|#[^\r\n]*)*|[^\r\n;#]*)")
_COMMENT = re.compile(r"#[^\r\n]*")
_NAME = re.compile(r"[.\w]+")
# Words by which parameters of a function are taken for tensors, models and optimizers.
_WORDS = re.compile(
    r"backward|zero_grad|state_dict|detach|require\w*grad|no_grad|\bcuda\b|param_groups|\.parameters\(|\.eval\(")


def worth_parsing(source: Source, project: Project) -> bool:
    """Whether a source could hold a finding. One that has no place on disk is judged by its text alone."""
    if _speaks(source.text):
        return True
    if source.path.startswith("<"):
        return bool(imports(source.text))
    return project.session(_Reach).leads(Path(source.path).absolute(), project, source.text)


def _speaks(text: str) -> bool:
    """Whether a text names torch or uses its words."""
    return "torch" in text or _WORDS.search(text) is not None


def imports(text: str) -> set[tuple[int, str]]:
    """Modules that a text might import: level (the number of leading dots) and dotted name.

    `from a import b` may import the module `a` and the module `a.b`.
    """
    found: set[tuple[int, str]] = set()
    joined = _JOINED.sub(r"\1 ", text)
    for names in _IMPORT.findall(joined):
        found.update((0, words[0]) for words in map(str.split, names.split(",")) if words)
    for module, names in _FROM.findall(joined):
        base = "".join(module.split())
        name = base.lstrip(".")
        level = len(base) - len(name)
        found.add((level, name))
        for part in _COMMENT.sub("", names.strip("()")).split(","):
            if match := _NAME.search(part):
                found.add((level, f"{name}.{match[0]}" if name else match[0]))
    return found


class _Reach:
    """Which files of a project lead to torch; one for each project."""

    def __init__(self) -> None:
        self.known: dict[Path, bool] = {}

    def leads(self, path: Path, project: Project, text: str) -> bool:
        """Whether the file at `path`, which holds `text`, or one that it imports at any remove, speaks of torch."""
        texts = {path: text}
        waiting, came_from = [path], {path: path}
        while waiting:
            here = waiting.pop()
            known = self.known.get(here)
            torch, nexts = (known, []) if known is not None else self._look(here, texts.pop(here, None), project)
            if torch:
                self._mark(here, came_from)
                return True
            for found in nexts:
                if found not in came_from:
                    came_from[found] = here
                    waiting.append(found)
        self.known.update(dict.fromkeys(came_from, False))
        return False

    def _mark(self, here: Path, came_from: dict[Path, Path]) -> None:
        """Note that a file leads to torch, and all on the way to it."""
        while not self.known.get(here):
            self.known[here] = True
            here = came_from[here]

    def _look(self, path: Path, text: str | None, project: Project) -> tuple[bool, list[Path]]:
        """Whether a file itself speaks of torch; if not, the project files that it imports."""
        if text is None:
            try:
                text = read_source(path).text
            except UnreadableFile:
                return False, []
        if _speaks(text):
            return True, []
        _, package = module_name(str(path))
        found = []
        for level, name in imports(text):
            dotted = absolute(name, level, package)
            if dotted.partition(".")[0] in third_party_packages():
                return True, []
            while dotted:  # importing a.b.c runs a and a.b as well
                if (file := project.locate(dotted, path.parent)) is not None:
                    found.append(file)
                dotted = dotted.rpartition(".")[0]
        return False, found
