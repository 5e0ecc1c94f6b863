"""Functions of the project: parameters, decorators, and what is asked of their bodies."""

from __future__ import annotations

import ast
import functools
from typing import TYPE_CHECKING

from torchlint import knowledge
from torchlint.findings import Confidence
from torchlint.model import callers
from torchlint.model.duck import duck_kind, makes_module, tensor_names
from torchlint.model.replaced import rebound_names
from torchlint.model.tree import FUNCTIONS, attribute_targets, chain, children
from torchlint.model.values import UNKNOWN, Grad, Kind, Value, join_all, literal

if TYPE_CHECKING:
    from torchlint.model import FileModel
    from torchlint.model.classes import ClassInfo

NO_GRAD = {"torch.no_grad", "torch.inference_mode", "torch.autograd.no_grad", "torch.autograd.inference_mode"}
MAX_CALLERS = 4
MOVES = {"to", "cuda", "cpu", "half", "float", "double", "bfloat16"}
# Decorators after which a call still runs the function and returns what it returns.
PLAIN_DECORATORS = (
    "torch.",
    "builtins.",
    "functools.",
    "abc.",
    "typing.",
    "typing_extensions.",
    "contextlib.",
    "pytest.mark.",
    "unittest.",
)


class FunctionInfo:
    """One function, method or lambda of the project."""

    def __init__(self, model: FileModel, node: ast.AST) -> None:
        self.model = model
        self.node = node
        self._callers_busy = False
        self._sites: list[ast.Call] | None = None

    def __repr__(self) -> str:
        return f"FunctionInfo({self.dotted})"

    @property
    def name(self) -> str:
        """The bare name; "<lambda>" for a lambda."""
        return getattr(self.node, "name", "<lambda>")

    @functools.cached_property
    def cls(self) -> ClassInfo | None:
        """The class whose body defines it."""
        owner = self.model.parent(self.node)
        while isinstance(owner, (ast.If, ast.Try)):
            owner = self.model.parent(owner)
        return self.model.class_info(owner) if isinstance(owner, ast.ClassDef) else None

    @functools.cached_property
    def dotted(self) -> str:
        """Module and qualified name."""
        if self.cls is not None:
            return f"{self.cls.dotted}.{self.name}"
        outer = [
            a.name
            for a in self.model.ancestors(self.node)
            if isinstance(a, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        ]
        return ".".join([self.model.index.name, *reversed(outer), self.name])

    @property
    def args(self) -> ast.arguments:
        """The parameter list."""
        return self.node.args  # type: ignore[attr-defined, no-any-return]

    @functools.cached_property
    def params(self) -> tuple[ast.arg, ...]:
        """Positional parameters, in order."""
        return (*self.args.posonlyargs, *self.args.args)

    @functools.cached_property
    def decorators(self) -> tuple[str, ...]:
        """Dotted names of the decorators; for a called decorator the name of what is called."""
        found = []
        for decorator in getattr(self.node, "decorator_list", ()):
            expr = decorator.func if isinstance(decorator, ast.Call) else decorator
            found.append(self.model.name_of(expr) or chain(expr))
        return tuple(found)

    @property
    def is_static(self) -> bool:
        """A staticmethod (`__new__` aside)."""
        return "builtins.staticmethod" in self.decorators

    @property
    def is_classmethod(self) -> bool:
        """A classmethod."""
        return "builtins.classmethod" in self.decorators

    @property
    def takes_class(self) -> bool:
        """Whether the first parameter of a method is the class."""
        return self.is_classmethod or self.name in ("__new__", "__init_subclass__", "__class_getitem__")

    @property
    def is_property(self) -> bool:
        """A property or cached property: reading the attribute calls it."""
        return any(d.endswith(("property", "abstractproperty")) for d in self.decorators)

    @functools.cached_property
    def is_wrapped(self) -> bool:
        """Whether a decorator that cannot be seen may have put something else in its place."""
        return not all(
            name.startswith(PLAIN_DECORATORS) or name.rpartition(".")[2] in ("setter", "deleter", "fixture")
            for name in self.decorators
        )

    @property
    def is_generator(self) -> bool:
        """Whether the body yields."""
        return bool(self.yields)

    @functools.cached_property
    def own_nodes(self) -> list[ast.AST]:
        """All nodes of the body that run when the function does: nested functions and classes left out."""
        body = self.node.body  # type: ignore[attr-defined]
        stack: list[ast.AST] = list(body)[::-1] if isinstance(body, list) else [body]
        found: list[ast.AST] = []
        while stack:
            node = stack.pop()
            found.append(node)
            if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
                continue
            stack.extend(children(node))
        return found

    @functools.cached_property
    def borrows_from(self) -> frozenset[ast.AST]:
        """The functions or files whose variables the body reads (imports and definitions aside)."""
        found = set()
        own = self.model.scope_of(self.node)
        for node in self.own_nodes:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in own.bindings:
                for scope in self.model.scopes(node):
                    bound = scope.bindings.get(node.id)
                    if bound and node.id not in scope.nonlocals:
                        if not isinstance(bound[-1], (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)):
                            found.add(scope.node)
                        break
        return frozenset(found)

    @functools.cached_property
    def rebound(self) -> frozenset[str]:
        """Its variables that inner functions, and globals that any function, may bind anew at any time."""
        return rebound_names(self.model, self.node)

    @functools.cached_property
    def calls(self) -> list[ast.Call]:
        """Calls in the body, in source order."""
        return [node for node in self.own_nodes if isinstance(node, ast.Call)]

    @functools.cached_property
    def yields(self) -> list[ast.AST]:
        """Yield expressions of the body."""
        return [node for node in self.own_nodes if isinstance(node, (ast.Yield, ast.YieldFrom))]

    @functools.cached_property
    def attribute_stores(self) -> list[tuple[ast.AST, ast.Attribute, ast.expr | None]]:
        """Stores to attributes: (statement, target, value; None when it is not a plain assignment)."""
        found: list[tuple[ast.AST, ast.Attribute, ast.expr | None]] = []
        for node in self.own_nodes:
            match node:
                case ast.Assign(targets=targets, value=value):
                    for target in targets:
                        found.extend(attribute_targets(node, target, value))
                case ast.AnnAssign(target=ast.Attribute() as target):
                    found.append((node, target, node.value))
                case ast.AugAssign(target=ast.Attribute() as target):
                    found.append((node, target, None))
                case ast.For(target=target) | ast.AsyncFor(target=target):
                    found.extend((node, t, None) for _, t, _ in attribute_targets(node, target, None))
                case ast.withitem(optional_vars=ast.Attribute() as target):
                    found.append((node, target, None))
        return found

    @functools.cached_property
    def self_name(self) -> str:
        """The name of the instance parameter of a method; "" for anything else."""
        if self.cls is None or self.is_static or self.is_classmethod or not self.params:
            return ""
        return self.params[0].arg

    # -- grad mode ----------------------------------------------------------------------------

    @functools.cached_property
    def declared_grad(self) -> bool | None:
        """Grad mode that decorators or the kind of function impose on the body; None if they say nothing."""
        for decorator, name in zip(getattr(self.node, "decorator_list", ()), self.decorators, strict=True):
            if name in NO_GRAD:
                return False
            if name in ("torch.enable_grad", "torch.autograd.enable_grad"):
                return True
            if name in ("torch.set_grad_enabled", "torch.autograd.set_grad_enabled"):
                match decorator:
                    case ast.Call(args=[ast.Constant(value=bool(mode))]):
                        return mode
            if name.rpartition(".")[2] in ("no_grad", "inference_mode", "_use_grad_for_differentiable"):
                return False
        if self.cls is not None:
            if self.cls.is_function and self.name in ("forward", "backward", "jvp", "setup_context", "vmap"):
                return False
            if runs_without_grad(self.cls.outside, self.name):
                return False
        return None

    @property
    def called_without_grad(self) -> bool:
        """Whether every call of it that can be seen in its file runs with gradients off."""
        sites = self.call_sites
        return bool(sites) and all(self.model.grad_at(site) is False for site in sites)

    # -- parameters ---------------------------------------------------------------------------

    @property
    def call_sites(self) -> list[ast.Call]:
        """Calls in the same file that surely or likely call this function."""
        if self._sites is None:
            if self.model.session.meets((self.node, "callers")):
                return []

            def forget() -> None:
                self._sites = None

            with self.model.session.nested((self.node, "callers"), forget, deeper=False):
                self._sites = callers.find(self)
        else:
            self.model.session.reads((self.node, "callers"))
        return self._sites if self._sites is not None else []

    @property
    def is_applied(self) -> bool:
        """Whether it is the forward of an autograd Function, which only `apply` calls."""
        return self.name == "forward" and self.is_static and self.cls is not None and self.cls.is_function

    def declared_value(self, arg: ast.arg) -> Value | None:
        """What the annotation or the role of a parameter says; None if they say nothing."""
        if arg.annotation is not None:
            value = self.model.annotation_value(arg.annotation, self.node)
            if value.known:
                return self._as_parameter(value, arg)
        return self._role_value(arg)

    def entry_value(self, arg: ast.arg) -> Value:
        """What a parameter holds on entry.

        In turn: its annotation or role, what the file's own calls pass, what the body does with it.
        """
        declared = self.declared_value(arg)
        if declared is not None:
            return declared
        passed = self._passed(arg)
        if passed.known:
            return self._as_parameter(passed.but(sure=min(passed.sure, Confidence.LIKELY)), arg)
        tried = callers.parametrised(self, arg)
        if tried.known:
            return self._as_parameter(tried, arg)
        used = self.used_as(arg.arg)
        if used is Kind.UNKNOWN and self.is_applied and arg.arg in tensor_names(self.own_nodes):
            used = Kind.TENSOR
        if used is not Kind.UNKNOWN:
            return Value(
                used,
                sure=Confidence.LIKELY,
                ident=arg,
                storage=arg,
                grad=Grad.YES if used is Kind.TENSOR else Grad.UNKNOWN,
            )
        default = self.default_of(arg)
        if default is not None and default.kind in (Kind.NUMBER, Kind.STRING):
            return Value(default.kind, sure=Confidence.LIKELY, ident=arg)
        if default is not None and default.kind is Kind.CLASS and makes_module(default):
            # Which Module a caller passes instead is open; that it is one is not.
            return Value(Kind.CLASS, sure=Confidence.LIKELY, name="torch.nn.Module", ident=arg)
        return Value(ident=arg)

    @staticmethod
    def _as_parameter(value: Value, arg: ast.arg) -> Value:
        if value.kind in (Kind.NUMBER, Kind.STRING, Kind.NONE):
            return value.but(const=None)
        # The parameter stands for itself, whichever of several objects the calls pass.
        return value.but(ident=arg, storage=arg) if value.is_tensor else value.but(ident=arg)

    def _role_value(self, arg: ast.arg) -> Value | None:
        if self.cls is None:
            return None
        if self.params and arg is self.params[0] and not self.is_static:
            if self.takes_class:
                return Value(Kind.CLASS, name=self.cls.dotted, cls=self.cls)
            if not self.cls.is_function or self.name not in ("forward", "backward"):
                return self.cls.instance(ident=arg)
        if self.cls.is_function:
            return self._function_role(arg)
        if self.name == "__getitem__" and self.cls.kind is Kind.DATASET and arg in self.params[1:2]:
            return Value(Kind.NUMBER, sure=Confidence.LIKELY, ident=arg)
        if self.name == "forward" and self.cls.is_module and self._tensor_like(arg):
            return Value(Kind.TENSOR, sure=Confidence.LIKELY, ident=arg, storage=arg, role="input")
        return None

    def _function_role(self, arg: ast.arg) -> Value | None:
        first = self.params[0] if self.params else None
        if self.name == "forward" and self.cls is not None and self.cls.method("setup_context") is not None:
            return None
        if self.name in ("forward", "backward", "setup_context", "jvp") and arg is first:
            return Value(Kind.CTX, ident=arg)
        if self.name == "backward":
            return Value(Kind.TENSOR, sure=Confidence.LIKELY, ident=arg, storage=arg, grad=Grad.NO, role="input")
        return None

    def _tensor_like(self, arg: ast.arg) -> bool:
        """A forward parameter without a default that says otherwise, and not *args or **kwargs."""
        if arg is self.args.vararg or arg is self.args.kwarg:
            return False
        default = self.default_of(arg)
        return default is None or default.kind is Kind.NONE

    @functools.cached_property
    def used_methods(self) -> dict[str, set[str]]:
        """For each name or `self.x` path, the attributes that the body reads from it; argument-less calls as "x()".

        A call of the object itself is "()".
        """
        found: dict[str, set[str]] = {}
        for node in self.own_nodes:
            if isinstance(node, ast.Call):
                found.setdefault(chain(node.func), set()).add("()")
            match node:
                case ast.Call(func=ast.Attribute(value=receiver, attr=attr), args=[]):
                    found.setdefault(chain(_moved(receiver)), set()).add(f"{attr}()")
                case ast.Attribute(value=receiver, attr=attr):
                    found.setdefault(chain(receiver), set()).add(attr)
        found.pop("", None)
        return found

    @functools.cached_property
    def sets_requires_grad(self) -> bool:
        """Whether the body may freeze or thaw parameters."""
        words = {"requires_grad", "requires_grad_", "requires_grad_()"}
        return any(words & names for names in self.used_methods.values())

    def proven_local(self, name: str, value: Value) -> Value:
        """An unknown value bound to a name, with what the body proves of it."""
        kind = self.used_as(name)
        if kind in (Kind.UNKNOWN, Kind.TENSOR):
            return value
        return Value(kind, sure=Confidence.LIKELY, ident=value.ident, site=value.site)

    def used_as(self, path: str) -> Kind:
        """The kind that the methods called on a path prove; UNKNOWN if they prove nothing."""
        return duck_kind(self.used_methods.get(path, set()))

    def default_of(self, arg: ast.arg) -> Value | None:
        """The value of a parameter's default; None if it has none."""
        expr = self.default_expr(arg)
        if isinstance(expr, ast.Constant):
            return literal(expr)  # whatever is being analysed
        return None if expr is None else self.model.value(expr)

    def default_expr(self, arg: ast.arg) -> ast.expr | None:
        """A parameter's default expression."""
        if arg in self.args.kwonlyargs:
            return self.args.kw_defaults[self.args.kwonlyargs.index(arg)]
        if arg in self.params:
            position = self.params.index(arg) - (len(self.params) - len(self.args.defaults))
            return self.args.defaults[position] if position >= 0 else None
        return None

    def _passed(self, arg: ast.arg) -> Value:
        """The join of what the calls in this file pass for a parameter; UNKNOWN if one cannot be seen."""
        if self._callers_busy or arg in (self.args.vararg, self.args.kwarg):
            return UNKNOWN
        self._callers_busy = True
        try:
            values = []
            for call in self.call_sites[:MAX_CALLERS]:
                expr = self.argument(call, arg)
                if expr is None:
                    default = self.default_of(arg)
                    values.append(default if default is not None else UNKNOWN)
                else:
                    values.append(self.model.value(expr))
            known = [v for v in values if v.known]
            return join_all(known)
        finally:
            self._callers_busy = False

    def argument(self, call: ast.Call, arg: ast.arg) -> ast.expr | None:
        """The expression that a call passes for a parameter; None if the default is used or it is unclear."""
        for keyword in call.keywords:
            if keyword.arg == arg.arg:
                return keyword.value
        if arg not in self.params:
            return None
        position = self.params.index(arg)
        if self.cls is not None and not self.is_static and not self._called_through_class(call):
            position -= 1
        if self.is_applied and self.cls is not None and self.cls.method("setup_context") is None:
            position -= 1  # `apply` passes ctx itself
        if 0 <= position < len(call.args) and not any(isinstance(a, ast.Starred) for a in call.args[: position + 1]):
            return call.args[position]
        return None

    def _called_through_class(self, call: ast.Call) -> bool:
        """`Base.method(self, x)` passes the instance itself."""
        match call.func:
            case ast.Attribute(value=receiver):
                return self.model.class_info_of(receiver) is not None
        return False

    def returned(self, receiver: Value | None = None) -> Value:
        """What it returns when nothing is known of the arguments."""
        return self.model.flow(self.node).returns


def runs_without_grad(bases: tuple[str, ...], method: str) -> bool:
    """Whether the framework that owns the class calls this method with gradients off.

    Lightning wraps validation, test and predict steps and their hooks in no_grad or inference_mode.
    """
    word = method.removeprefix("on_").partition("_")[0]
    if word not in ("validation", "test", "predict") or method in ("test_dataloader", "predict_dataloader"):
        return False
    return any(
        base
        and (info := knowledge.third_party_class(base)) is not None
        and info.what == "module"
        and "framework_steps" in info.flags
        for base in bases
    )


def _moved(expr: ast.expr) -> ast.expr:
    """What is moved or converted: `model` of `model.cuda().half()`; Modules and tensors return the like of it."""
    while isinstance(expr, ast.Call) and isinstance(expr.func, ast.Attribute) and expr.func.attr in MOVES:
        expr = expr.func.value
    return expr
