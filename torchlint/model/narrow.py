"""What a test says of names in its two arms."""
from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from torchlint.model.values import NONE, NUMBER, STRING, UNKNOWN, Kind, Value

if TYPE_CHECKING:
    from torchlint.model.interp import Env, Run

BUILTIN_KINDS = {
    "builtins.int": Kind.NUMBER, "builtins.float": Kind.NUMBER, "builtins.bool": Kind.NUMBER,
    "builtins.str": Kind.STRING, "builtins.list": Kind.LIST, "builtins.tuple": Kind.TUPLE,
    "builtins.dict": Kind.DICT, "builtins.set": Kind.SET, "torch.Tensor": Kind.TENSOR,
    "numpy.ndarray": Kind.NDARRAY, "torch.nn.Module": Kind.MODULE, "numbers.Number": Kind.NUMBER,
}


def assume(run: Run, test: ast.expr, env: Env) -> tuple[Env | None, Env | None]:
    """The environments in which the test holds and does not hold; None for a way never taken."""
    match test:
        case ast.Constant(value=value):
            return (dict(env), None) if value else (None, dict(env))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            no, yes = assume(run, operand, env)
            return yes, no
        case ast.BoolOp(op=ast.And(), values=values):
            yes_env: Env | None = dict(env)
            for part in values:
                if yes_env is not None:
                    yes_env = assume(run, part, yes_env)[0]
            return yes_env, dict(env)
        case ast.BoolOp(op=ast.Or(), values=values):
            no_env: Env | None = dict(env)
            for part in values:
                if no_env is not None:
                    no_env = assume(run, part, no_env)[1]
            return dict(env), no_env
        case ast.Compare(left=left, ops=[ast.Is() | ast.IsNot() as op], comparators=[ast.Constant(value=None)]):
            none, other = _split_none(run, left, env)
            return (none, other) if isinstance(op, ast.Is) else (other, none)
        case ast.Call(func=func, args=[subject, types]) if run.model.name_of(func) == "builtins.isinstance":
            return _split_isinstance(run, subject, types, env)
        case ast.Call(func=func, args=[subject]) if run.model.name_of(func) == "torch.is_tensor":
            return _with(env, subject, _as_kind(run, subject, Kind.TENSOR)), _excluding(run, env, subject, Kind.TENSOR)
        case ast.Name() | ast.Attribute():
            return _truthy(run, test, env), dict(env)
    return dict(env), dict(env)


def _path(expr: ast.expr) -> str:
    from torchlint.model.evaluate import path_of

    return path_of(expr)


def _with(env: Env, expr: ast.expr, value: Value | None) -> Env:
    found = dict(env)
    path = _path(expr)
    if path and value is not None:
        found[path] = value
    return found


def _now(run: Run, expr: ast.expr) -> Value:
    return run.flow.values.get(expr, UNKNOWN)


def _truthy(run: Run, expr: ast.expr, env: Env) -> Env:
    """A name that is true is not None."""
    value = _now(run, expr)
    return _with(env, expr, value.but(optional=False)) if value.optional else dict(env)


def _split_none(run: Run, left: ast.expr, env: Env) -> tuple[Env, Env]:
    value = _now(run, left)
    other = value.but(optional=False) if value.optional else None
    return _with(env, left, NONE), _with(env, left, other)


def _as_kind(run: Run, expr: ast.expr, kind: Kind) -> Value:
    value = _now(run, expr)
    if value.kind is kind:
        return value.but(optional=False)
    return Value(kind, ident=value.ident, storage=value.ident)


def _excluding(run: Run, env: Env, expr: ast.expr, kind: Kind) -> Env:
    """Where a value is proven not to be of a kind, what was believed is wrong."""
    value = _now(run, expr)
    return _with(env, expr, Value(ident=value.ident)) if value.kind is kind else dict(env)


def _kind_of_class(run: Run, member: ast.expr, name: str) -> Kind:
    """What instances of a class are that a test names."""
    from torchlint.model.classes import class_kind

    known = BUILTIN_KINDS.get(name)
    if known is not None:
        return known
    cls = run.model.class_named(member)
    return cls.kind if cls is not None else class_kind(name)


def matched(run: Run, pattern: ast.pattern, subject: Value) -> dict[str, Value]:
    """The names that a pattern binds, with what its classes say of them."""
    match pattern:
        case ast.MatchAs(pattern=None, name=str(name)):
            return {name: subject}
        case ast.MatchAs(pattern=ast.pattern() as inner, name=str(name)):
            return {**matched(run, inner, subject), name: _of_pattern(run, inner, subject)}
        case ast.MatchClass(cls=cls, patterns=[ast.MatchAs(pattern=None, name=str(name))]):
            builtin = run.model.name_of(cls).startswith("builtins.")
            return {name: _of_pattern(run, pattern, subject) if builtin else UNKNOWN}
    return {part.name: UNKNOWN for part in ast.walk(pattern)
            if isinstance(part, (ast.MatchAs, ast.MatchStar)) and part.name}


def _of_pattern(run: Run, pattern: ast.pattern, subject: Value) -> Value:
    if not isinstance(pattern, ast.MatchClass):
        return UNKNOWN
    cls = run.model.class_named(pattern.cls)
    if cls is not None:
        return cls.instance(ident=subject.ident)
    name = run.model.name_of(pattern.cls)
    kind = _kind_of_class(run, pattern.cls, name)
    if kind is subject.kind:
        return subject.but(optional=False)
    plain = {Kind.NUMBER: NUMBER, Kind.STRING: STRING}.get(kind)
    return plain or (Value(kind, ident=subject.ident, storage=subject.ident) if kind is not Kind.UNKNOWN else UNKNOWN)


def _split_isinstance(run: Run, subject: ast.expr, types: ast.expr, env: Env) -> tuple[Env, Env]:
    members = types.elts if isinstance(types, ast.Tuple) else [types]
    names = [run.model.name_of(member) for member in members]
    kinds = {_kind_of_class(run, member, name) for member, name in zip(members, names, strict=True)}
    if len(members) == 1:
        cls = run.model.class_named(members[0])
        if cls is not None:
            value = cls.instance(ident=_now(run, subject).ident)  # or of a subclass, with methods of its own
            return _with(env, subject, value.but(facts=value.facts | {"isinstance"})), dict(env)
        outside = next(iter(kinds))
        if outside is not Kind.UNKNOWN and names[0] not in BUILTIN_KINDS:
            value = _now(run, subject)
            return _with(env, subject, Value(outside, name=names[0], ident=value.ident)), dict(env)
    if len(kinds) == 1 and Kind.UNKNOWN not in kinds:
        kind = next(iter(kinds))
        value = {Kind.NUMBER: NUMBER, Kind.STRING: STRING}.get(kind) or _as_kind(run, subject, kind)
        return _with(env, subject, value), _excluding(run, env, subject, kind)
    yes = Value(ident=_now(run, subject).ident)
    no = dict(env)
    for kind in kinds - {Kind.UNKNOWN}:
        if _now(run, subject).kind is kind:
            no = _with(env, subject, yes)
    return _with(env, subject, yes), no
