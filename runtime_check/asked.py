"""Arguments that the conditions around a line ask for.

What stands under `if self.gated:` runs only in an instance that was made with `gated=True`, whatever its inputs, and
what stands under `if flag:` only in a call that is given `flag=True`. Such arguments have defaults, so nothing else
would ever give them another value.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from runtime_check.amounts import amounts
from runtime_check.specs import OMIT, Assignment, Const, Made, Spec, Tensor
from runtime_check.world import RANKS

FIRST = 6  # assignments that are tried with what is asked for
DEPTH = 4  # names and attributes that are followed to a parameter
PRESENT = object()  # stands for any value but None
REGISTERS = ("register_buffer", "register_parameter", "register_module", "add_module")
UNNAMED = {"", "__init__", "__call__", "forward"}  # what is called by another name, or by that of the class
ENDS = (ast.Return, ast.Continue, ast.Break)  # what raises refuses arguments that defaults are not


@dataclass(frozen=True)
class Wishes:
    """What some parameters of a function are to be."""

    values: tuple[tuple[str, Any], ...] = ()

    def put(self, base: Assignment, candidates: dict[str, list[Spec]]) -> Assignment:
        """The arguments with those values, as far as there is a way to give them."""
        for name, value in self.values:
            if RANKS.search(name):
                continue  # each process has its own
            if "." in name:
                base = with_setting(base, name, value, candidates)
                continue
            spare = [item for item in candidates.get(name, ()) if item is not OMIT and item != Const(None)]
            if spare and (value is PRESENT or (value is True and not isinstance(spare[0], Const))):
                base = base.put(name, spare[0])
            elif name in candidates and value is not PRESENT and not (spare and isinstance(spare[0], Tensor)):
                base = base.put(name, Const(value))
        return base

    def starts(self, plain: list[Assignment], candidates: dict[str, list[Spec]]) -> list[Assignment]:
        """Some assignments, before them the first of them with those values."""
        return [*(self.put(item, candidates) for item in plain[:FIRST] if self.values), *plain]


NO_WISHES = Wishes()


@dataclass(frozen=True)
class Asked:
    """What the conditions around a line ask of a class's constructor, and of the function that holds the line."""

    made: Wishes = NO_WISHES
    called: Wishes = NO_WISHES
    switched: tuple[tuple[str, bool], ...] = ()  # attributes that are set afterwards, as users do: no parameter does

    def switch(self, instance: Any) -> Any:
        """An instance with those of its attributes set."""
        for name, value in self.switched:
            if isinstance(getattr(instance, name, None), bool):
                setattr(instance, name, value)
        return instance

    @property
    def label(self) -> str:
        """How that would be written behind the constructor's arguments."""
        return "".join(f"; then .{name} = {value}" for name, value in self.switched)


NOTHING_ASKED = Asked()


def bound_by(function: ast.FunctionDef, name: str) -> Iterator[Wishes]:
    """What a function's parameters are to be so that it comes to each of the places where it binds a name."""
    stores = (node for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    for line in dict.fromkeys(sorted(node.lineno for node in stores if node.id == name)):
        reading = Reading(None, function)
        for test, holds in conditions(function.body, line):
            reading.read(test, holds, function)
        yield Wishes(tuple(reading.called.items()))


def asked_by(tree: ast.Module, qualname: str, line: int) -> Asked:
    """What the conditions around a line of a function or method ask for."""
    holder, _, name = qualname.rpartition(".")
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    if holder:
        owners = [functions(cls.body) for cls in lineage(classes, holder)]
    else:
        owners = [functions(tree.body)]
    function = next((owner[name] for owner in owners if name in owner), None)
    if function is None:
        return NOTHING_ASKED
    init = next((owner["__init__"] for owner in owners if "__init__" in owner), None) if holder else None
    reading = Reading(init, function)
    for test, holds in conditions(function.body, line):
        reading.read(test, holds, function)
    known = {name for owner in owners for name in owner}
    for attribute in dict.fromkeys(item for item in attributes_read(function.body, line) if item not in known):
        reading.exists(attribute)
    if not calls_any(tree, {holder.rpartition(".")[2], name} - UNNAMED):  # what the file itself gives is meant
        for test, holds in passed_by(function, line):
            reading.read(test, holds, function)
        reading.enough(line)
    switched = tuple(reading.switched.items())
    return Asked(Wishes(tuple(reading.made.items())), Wishes(tuple(reading.called.items())), switched)


def lineage(classes: dict[str, ast.ClassDef], name: str) -> Iterator[ast.ClassDef]:
    """A class of the file and those of its bases that are in the file too."""
    for _ in range(DEPTH):
        if name not in classes:
            return
        yield classes[name]
        name = next((base.id for base in classes[name].bases if isinstance(base, ast.Name)), "")


def functions(body: list[ast.stmt]) -> dict[str, ast.FunctionDef]:
    """The functions in a body, by name."""
    return {item.name: item for item in body if isinstance(item, ast.FunctionDef)}


def conditions(body: list[ast.stmt], line: int) -> Iterator[tuple[ast.expr, bool]]:
    """The tests that decide whether a line runs, with what they must be."""
    for statement in body:
        blocks = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
        blocks += [handler.body for handler in getattr(statement, "handlers", [])]
        if not statement.lineno <= line <= (statement.end_lineno or line):
            if isinstance(statement, ast.If) and isinstance(statement.body[-1], ENDS):
                yield statement.test, False
            continue
        for number, block in enumerate(blocks):
            if block and block[0].lineno <= line <= (block[-1].end_lineno or line):
                if isinstance(statement, ast.If):
                    yield statement.test, number == 0
                yield from conditions(block, line)
        return


def passed_by(function: ast.FunctionDef, line: int) -> list[tuple[ast.expr, bool]]:
    """The tests of conditions on a line that may return: what is on the line is about what comes when none holds."""
    found: list[tuple[ast.expr, bool]] = []
    block: list[ast.stmt] = [node for node in ast.walk(function) if isinstance(node, ast.If) and node.lineno == line]
    while block:
        match block:
            case [ast.If(test=test, body=[*_, ast.Return()], orelse=block)]:
                found.append((test, False))
            case _:
                return []
    return found


def attributes_read(body: list[ast.stmt], line: int) -> Iterator[str]:
    """Attributes of `self` that are read on the way to a line, and on it."""
    for statement in body:
        blocks = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
        inside = statement.lineno <= line <= (statement.end_lineno or line)
        if statement.lineno > line:
            return
        if not any(blocks):
            for node in ast.walk(statement):
                match node:
                    case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Load()):
                        yield name
        for block in blocks if inside else ():
            if block and block[0].lineno <= line <= (block[-1].end_lineno or line):
                yield from attributes_read(block, line)


def atoms(test: ast.expr, holds: bool) -> Iterator[tuple[ast.expr, bool]]:
    """The parts of a condition that make it what it must be."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from atoms(test.operand, not holds)
    elif isinstance(test, ast.BoolOp):
        every = isinstance(test.op, ast.And) == holds
        for part in test.values if every else test.values[:1]:
            yield from atoms(part, holds)
    else:
        yield test, holds


def wanted(test: ast.expr, holds: bool) -> tuple[ast.expr, Any] | None:
    """The expression that a simple condition is about, and a value that makes the condition what it must be."""
    if isinstance(test, (ast.Name, ast.Attribute)):
        return test, holds
    if isinstance(test, ast.Call) and ast.unparse(test.func) == "isinstance" and test.args and holds:
        return test.args[0], PRESENT
    if not isinstance(test, ast.Compare) or len(test.ops) > 1:
        return None
    left, operator = test.left, test.ops[0]
    try:
        value: Any = ast.literal_eval(test.comparators[0])
    except ValueError:
        return None
    if isinstance(operator, ast.In) and holds and isinstance(value, (list, tuple, set)) and value:
        return left, next(iter(value))
    if value is None or isinstance(operator, (ast.Eq, ast.Is, ast.NotEq, ast.IsNot)):
        same = isinstance(operator, (ast.Eq, ast.Is)) == holds
        if not same and type(value) in (int, float):
            return left, value + 1
        return (left, value) if same else (left, PRESENT) if value is None else None
    if type(value) not in (int, float):
        return None
    if not isinstance(operator, (ast.Gt, ast.GtE, ast.Lt, ast.LtE)):
        return None
    return left, value + (1 if isinstance(operator, (ast.Gt, ast.GtE)) == holds else -1)


@dataclass
class Reading:
    """Follows the conditions in a function to its parameters, and to those of the constructor."""

    init: ast.FunctionDef | None
    function: ast.FunctionDef
    made: dict[str, Any] = field(default_factory=dict)
    called: dict[str, Any] = field(default_factory=dict)
    switched: dict[str, bool] = field(default_factory=dict)

    def read(self, test: ast.expr, holds: bool, function: ast.FunctionDef, depth: int = DEPTH) -> None:
        """Notes what a condition in a function asks for."""
        for part, must in atoms(test, holds):
            about = wanted(part, must)
            if about is not None and depth:
                self.follow(*about, function, depth - 1)

    def exists(self, attribute: str) -> None:
        """Notes what the constructor wants before it makes an attribute that it makes under conditions alone."""
        made = list(bindings(self.init, attribute)) if self.init is not None else []
        if self.init is None or not made:
            return
        ways = [list(conditions(self.init.body, place)) for place in made]
        for test, holds in ways[0] if all(ways) else ():
            self.read(test, holds, self.init)

    def enough(self, line: int) -> None:
        """Notes larger amounts where defaults are so small that a line does nothing."""
        for amount in amounts(self.function, line):
            other = Reading(self.init, self.function)
            other.follow(amount.node, amount.enough, self.function, DEPTH)
            kinds = ((other.made, self.made, self.init), (other.called, self.called, self.function))
            for found, mine, function in kinds:
                for name, value in found.items():
                    if function is not None and default_of(function, name) in amount.idle:
                        mine.setdefault(name, value)

    def follow(self, what: ast.expr, value: Any, function: ast.FunctionDef, depth: int) -> None:
        """Notes which parameters give an expression of a function a value."""
        self.setting(what, value, function)
        if isinstance(what, ast.Name) and what.id in parameters(function):
            (self.made if function is self.init else self.called).setdefault(what.id, value)
            return
        own = isinstance(what, ast.Attribute) and ast.unparse(what.value) == "self"
        where = self.init if own else function
        if is_setting(what) and isinstance(what, ast.Attribute) and what.attr in (
                parameters(self.init) if self.init is not None else ()):
            self.made.setdefault(what.attr, value)
            return
        if where is None or not (own or isinstance(what, ast.Name)):
            return
        made = list(assignments(where, ast.unparse(what)))
        if isinstance(what, ast.Attribute) and not made and what.attr in parameters(where):
            self.made.setdefault(what.attr, value)
        empty = value is None or value is False
        other = all(isinstance(source, ast.Constant) and source.value is (not value) for _, source in made)
        if own and made and other and isinstance(value, bool) and isinstance(what, ast.Attribute):
            self.switched.setdefault(what.attr, value)
        for line, source in made:
            if isinstance(source, ast.Constant) and (not source.value) != empty:
                continue
            for test, holds in conditions(where.body, line):
                self.read(test, holds, where, depth)
            if isinstance(source, ast.IfExp) and (value is PRESENT or isinstance(value, bool) or value is None):
                nothing = isinstance(source.body, ast.Constant) and not source.body.value
                self.read(source.test, nothing == empty, where, depth)
            elif depth:
                self.follow(source, value, where, depth - 1)
            return


    def setting(self, what: ast.expr, value: Any, function: ast.FunctionDef) -> None:
        """Notes what an object that is given has to hold: `config.depth`, `self.config.depth`."""
        first, *rest = ast.unparse(what).split(".") if isinstance(what, ast.Attribute) else [""]
        if value is PRESENT or not all(part.isidentifier() for part in rest):
            return
        if first == "self" and len(rest) > 1:
            self.made.setdefault(".".join(rest), value)
        elif rest and first in parameters(function):
            (self.made if function is self.init else self.called).setdefault(".".join([first, *rest]), value)


def with_setting(base: Assignment, path: str, value: Any, candidates: dict[str, list[Spec]]) -> Assignment:
    """The arguments with an object of them that holds something under a name that it has; unchanged if none is made."""
    name, *inner, last = path.split(".")
    options = [spec for spec in (base.get(name), *candidates.get(name, ())) if isinstance(spec, Made)]
    if not options or name not in candidates:
        return base

    def make() -> Any:
        made = owner = options[0].make()
        for part in inner:
            owner = getattr(owner, part)
        if hasattr(owner, last):
            setattr(owner, last, value)
        return made

    return base.put(name, Made(f"{options[0].label} with {'.'.join([*inner, last])}={value!r}", make))


def is_setting(what: ast.expr) -> bool:
    """Whether an expression is an attribute of what an instance keeps: `self.config.depth`."""
    match what:
        case ast.Attribute(value=ast.Attribute(value=ast.Name(id="self"))):
            return True
    return False


def bindings(function: ast.FunctionDef, attribute: str) -> Iterator[int]:
    """The lines on which a function gives `self` an attribute, be it by the methods of Modules for that."""
    for node in ast.walk(function):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()) if name == attribute:
                yield node.lineno
            case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=how), args=[ast.Constant(value=name), *_]):
                if name == attribute and how in REGISTERS:
                    yield node.lineno


def parameters(function: ast.FunctionDef) -> set[str]:
    """The names of a function's parameters."""
    parts = function.args
    return {item.arg for item in (*parts.posonlyargs, *parts.args, *parts.kwonlyargs)} - {"self", "cls"}


def default_of(function: ast.FunctionDef, name: str) -> object:
    """The default of a parameter: a number, or else as it is written; "" if it has none."""
    parts = function.args
    plain = [*parts.posonlyargs, *parts.args]
    ordered = zip(plain[::-1], parts.defaults[::-1], strict=False)
    for parameter, default in (*ordered, *zip(parts.kwonlyargs, parts.kw_defaults, strict=True)):
        if parameter.arg == name and isinstance(default, ast.Constant) and type(default.value) in (int, float):
            return default.value
        if parameter.arg == name and default is not None:
            return ast.unparse(default)
    return ""


def calls_any(tree: ast.Module, names: set[str]) -> bool:
    """Whether a file calls anything of some names."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in names:
                return True
    return False


def assignments(function: ast.FunctionDef, name: str) -> Iterator[tuple[int, ast.expr]]:
    """Where a function assigns a name or attribute, and what."""
    for node in ast.walk(function):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(ast.unparse(target) == name for target in targets):
                yield node.lineno, node.value
