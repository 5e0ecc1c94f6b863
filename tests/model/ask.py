"""Small questions to the model, written beside the code that they are about.

A question file holds programs separated by `#--- title`. `#=== name.py` starts another file of the
same program (the first one is `main.py`). A comment `#? expression => words` asks about the last
occurrence of that expression on its line; without an expression it asks about the value that the
line's statement assigns, returns or evaluates. The words are those of `describe`; further
`shares=x` (one storage with x), `same=x` (the same object), `mode=on|off|unknown` (gradients),
`event=backward` (what happens on that line), `unsure` (unknown, or less than sure). `not=word` forbids a word.
"""
from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

from torchlint.files import Source, read_source
from torchlint.findings import Confidence
from torchlint.model import FileModel, Grad, Value
from torchlint.project import Project

QUESTIONS = Path(__file__).parent / "questions"
MARK = re.compile(r"#\?\s*(?:(?P<expr>.*?)\s*=>)?\s*(?P<words>[^#]+)$")


@dataclass(frozen=True)
class Question:
    """One expectation about one place."""

    file: str
    line: int
    expr: str  # "" for the statement's own value
    words: tuple[str, ...]


@dataclass(frozen=True)
class Program:
    """A few files and what is asked about them."""

    title: str
    files: tuple[tuple[str, str], ...]

    @property
    def questions(self) -> list[Question]:
        """All questions of the program, in order."""
        found = []
        for name, text in self.files:
            for number, line in enumerate(text.splitlines(), 1):
                for part in line.split("#?")[1:]:
                    match = MARK.match("#?" + part.strip())
                    assert match is not None, f"{self.title}: not a question: {line}"
                    found.append(Question(name, number, (match["expr"] or "").strip(), tuple(match["words"].split())))
        return found


def programs(path: Path) -> list[Program]:
    """The programs of a question file."""
    found = []
    for block in re.split(r"^#---", path.read_text(), flags=re.M)[1:]:
        title, _, text = block.partition("\n")
        parts = re.split(r"^#=== (\S+)\n", text, flags=re.M)
        files = [("main.py", parts[0]), *zip(parts[1::2], parts[2::2], strict=True)]
        found.append(Program(f"{path.stem}: {title.strip()}", tuple(files)))
    return found


def all_programs() -> list[Program]:
    """Every program of every question file."""
    return [program for path in sorted(QUESTIONS.glob("*.txt")) for program in programs(path)]


def place(program: Program, folder: Path) -> dict[str, FileModel]:
    """Write the program's files and model each of them."""
    for name, text in program.files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    project = Project([folder])
    return {name: FileModel(read_source(folder / name), project) for name, _ in program.files}


def model_of(text: str) -> FileModel:
    """The model of one file in memory."""
    return FileModel(Source("<memory>", text), Project())


def node_at(model: FileModel, question: Question) -> ast.AST:
    """The node that a question is about."""
    wanted = ast.unparse(ast.parse(question.expr, mode="eval").body) if question.expr else ""
    found: list[ast.expr] = []
    for node in ast.walk(model.tree):
        if wanted and isinstance(node, ast.expr) and node.lineno <= question.line <= (node.end_lineno or 0):
            if ast.unparse(node) == wanted and node.end_lineno == question.line:
                found.append(node)
        elif not wanted and isinstance(node, ast.stmt) and node.lineno <= question.line <= (node.end_lineno or 0):
            value = getattr(node, "value", None)
            if isinstance(value, ast.expr):
                found.append(value)
    assert found, f"no such expression on line {question.line}: {question.expr or 'a statement with a value'}"
    return max(found, key=lambda n: (n.lineno, n.col_offset))


def describe(value: Value) -> set[str]:
    """Everything that can be expected of a value, as words."""
    words = {value.kind.value, f"sure={value.sure.word}", f"name={value.name}", f"squash={value.squash or 'none'}"}
    if value.grad is not Grad.UNKNOWN:
        words.add(value.grad.value)
    else:
        words.add("grad-unknown")
    if not value.known or value.sure is not Confidence.SURE:
        words.add("unsure")
    words.add(f"role={value.role or 'none'}")
    words.add("carried" if value.carried else "not-carried")
    words.add("optional" if value.optional else "required")
    if value.cls is not None:
        words.add(f"class={value.cls.node.name}")
    if value.item is not None:
        words.add(f"item={value.item.kind.value}")
    if value.bound is not None:
        words.add(f"of={value.bound.kind.value}")
    if value.const is not None:
        words.add(f"const={value.const}")
    if value.elements is not None:
        words.add(f"members={len(value.elements)}")
    words |= {f"fact={fact}" for fact in value.facts}
    return words


def at_place(model: FileModel, node: ast.AST) -> set[str]:
    """The grad mode and the events of the place where a node stands."""
    mode = {True: "on", False: "off", None: "unknown"}[model.grad_at(node)]
    here = model.statement(node)
    events = [e for e in model.flow(model.owner(node)).events if model.statement(e.node) is here]
    return {f"mode={mode}"} | {f"event={event.what}" for event in events}


def relations(model: FileModel, node: ast.AST, question: Question) -> set[str]:
    """Which of the names asked for are the same object, or a view of the same storage."""
    found: set[str] = set()
    value = model.value(node)
    for word in question.words:
        how, _, other = word.removeprefix("not=").partition("=")
        if how not in ("shares", "same"):
            continue
        uses = [n for n in model.nodes(ast.Name) if n.id == other and n.lineno <= question.line]
        assert uses, f"no {other} before line {question.line}"
        theirs = model.value(max(uses, key=lambda n: (n.lineno, n.col_offset)))
        mine, its = (value.storage, theirs.storage) if how == "shares" else (value.ident, theirs.ident)
        if mine is not None and mine == its:
            found.add(f"{how}={other}")
    return found


def missing(model: FileModel, question: Question) -> list[str]:
    """The expected words that the model's answer lacks; `not-x` forbids x."""
    node = node_at(model, question)
    have = describe(model.value(node)) | {f"dotted={model.name_of(node)}"} | at_place(model, node)
    have |= relations(model, node, question)
    lacking = []
    for word in question.words:
        if (word.startswith("not=") and word[4:] in have) or (not word.startswith("not=") and word not in have):
            lacking.append(word)
    return [f"{word} (have: {' '.join(sorted(have))})" for word in lacking]
