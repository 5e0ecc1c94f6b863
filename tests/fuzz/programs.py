"""Programs that nobody would write: random ones in torch's vocabulary, and rule examples that were tampered with."""
from __future__ import annotations

from hypothesis import strategies as st

from torchlint.rule import all_rules


def words(text: str) -> st.SearchStrategy[str]:
    """One of the words of a text; `~` stands for a space."""
    return st.sampled_from([word.replace("~", " ") for word in text.split()])


NAMES = words("x y loss total losses model net self ctx optimizer scaler loader batch hidden w p torch nn F i _")
DOTTED = words(
    "torch.zeros torch.sum torch.cat torch.no_grad torch.load torch.autograd.grad torch.Tensor torch.where nn.Linear "
    "nn.Module nn.Parameter nn.ModuleList nn.Sequential nn.CrossEntropyLoss F.softmax F.dropout F.cross_entropy "
    "F.binary_cross_entropy_with_logits torch.optim.SGD torch.cuda.amp.GradScaler torch.utils.data.DataLoader "
    "torch.autograd.Function nn.utils.clip_grad_norm_ torch.nn.init.normal_ super range zip enumerate list float "
    "isinstance getattr nowhere.at.all"
)
ATTRIBUTES = words(
    "data grad item detach backward step zero_grad view transpose add_ mul_ copy_ append parameters state_dict eval "
    "train forward apply saved_tensors save_for_backward layers weight T shape cuda to requires_grad_ __init__ "
    "__class__ items values scale update"
)
CONSTANTS = words("0 1 -1 0.5 None True 'data' b'' ... 1j 'é数' () {}")
OPERATORS = words("+ - * / @ ** % // & | ^ << >> and or == is in not~in <")
BASES = st.sampled_from(
    ["nn.Module", "torch.autograd.Function", "torch.utils.data.Dataset", "A", "", "A, B", "metaclass=x", "*x"]
)
METHODS = words("__init__ forward backward __call__ __getitem__ train helper step")


def _calls(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Calls with all sorts of arguments."""
    argument = st.one_of(
        inner, inner.map("*{}".format), inner.map("k={}".format), inner.map("**{}".format), inner.map("dim={}".format)
    )
    return st.tuples(st.one_of(DOTTED, inner), st.lists(argument, max_size=3).map(_ordered)).map(
        lambda pair: f"{pair[0]}({', '.join(pair[1])})"
    )


def _ordered(arguments: list[str]) -> list[str]:
    """Arguments in an order that the grammar allows, and no keyword twice."""
    unique = {word.split("=")[0] if word.startswith(("k=", "dim=")) else word: word for word in arguments}
    rank = {"*": 1, "k": 2, "d": 2}
    return sorted(unique.values(), key=lambda word: 3 if word.startswith("**") else rank.get(_kind(word), 0))


def _kind(word: str) -> str:
    return word[0] if word.startswith(("*", "k=", "dim=")) else ""


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Expressions made of expressions."""
    pair = st.tuples(inner, inner)
    return st.one_of(
        _calls(inner),
        st.tuples(inner, ATTRIBUTES).map(lambda it: f"({it[0]}).{it[1]}"),
        st.tuples(inner, ATTRIBUTES).map(lambda it: f"({it[0]}).{it[1]}()"),
        st.tuples(inner, OPERATORS, inner).map(lambda it: f"({it[0]} {it[1]} {it[2]})"),
        pair.map(lambda it: f"({it[0]})[{it[1]}]"),
        pair.map(lambda it: f"({it[0]})[1:, ..., {it[1]}]"),
        pair.map(lambda it: f"({it[0]}, {it[1]})"),
        pair.map(lambda it: f"[{it[0]}, *{it[1]}]"),
        pair.map(lambda it: f"{{{it[0]}: {it[1]}}}"),
        pair.map(lambda it: f"[{it[0]} for x in {it[1]}]"),
        pair.map(lambda it: f"{{x: {it[0]} for x, y in {it[1]} if x}}"),
        pair.map(lambda it: f"({it[0]} if {it[1]} else None)"),
        inner.map(lambda it: f"(lambda x, *y, **z: {it})"),
        inner.map(lambda it: f"(w := {it})"),
        inner.map(lambda it: f"(not {it})"),
        inner.map(lambda it: f"(-({it}))"),
    )


EXPRESSIONS = st.recursive(st.one_of(NAMES, CONSTANTS, DOTTED), _larger, max_leaves=8)
TARGETS = st.one_of(
    NAMES,
    st.tuples(NAMES, ATTRIBUTES).map(".".join),
    st.tuples(NAMES, ATTRIBUTES, EXPRESSIONS).map(lambda it: f"{it[0]}.{it[1]}[{it[2]}]"),
    st.tuples(NAMES, NAMES).map(lambda it: f"{it[0]}, *{it[1]}"),
)
SIMPLE = st.one_of(
    EXPRESSIONS,
    st.tuples(TARGETS, EXPRESSIONS).map(" = ".join),
    st.tuples(NAMES, NAMES, EXPRESSIONS).map(" = ".join),
    st.tuples(NAMES, ATTRIBUTES, st.sampled_from(["+=", "*=", "|=", "@="]), EXPRESSIONS).map(
        lambda it: f"{it[0]}.{it[1]} {it[2]} {it[3]}"
    ),
    st.tuples(NAMES, st.sampled_from(["+=", "-=", "/="]), EXPRESSIONS).map(" ".join),
    st.tuples(NAMES, EXPRESSIONS, EXPRESSIONS).map(lambda it: f"{it[0]}: {it[1]} = {it[2]}"),
    NAMES.map("del {}".format),
    NAMES.map("global {}".format),
    EXPRESSIONS.map("return {}".format),
    EXPRESSIONS.map("assert {}".format),
    EXPRESSIONS.map("yield {}".format),
    st.sampled_from(
        ["pass", "break", "continue", "raise", "import torch as T", "from torch import *", "from . import nn",
         "from torch.nn import functional as F", "import torch.nn as nn", "super().__init__()", "loss.backward()",
         "optimizer.step()", "x.data.add_(1)", "total += loss", "self.layers = [nn.Linear(1, 1)]"]
    ),
)  # fmt: skip


def indented(lines: list[str]) -> list[str]:
    return ["    " + line for line in lines] or ["    pass"]


def _blocks(inner: st.SearchStrategy[list[str]]) -> st.SearchStrategy[list[str]]:
    """Compound statements around blocks."""

    def around(*heads: str) -> st.SearchStrategy[list[str]]:
        """One block under each head; `{}` in a head is an expression."""
        parts = [st.tuples(EXPRESSIONS.map(head.format) if "{}" in head else st.just(head), inner) for head in heads]
        return st.tuples(*parts).map(lambda made: [line for head, body in made for line in [head, *indented(body)]])

    functions = st.tuples(
        st.sampled_from(["", "@staticmethod", "@torch.no_grad()", "@property", "@x.y(z)"]),
        st.sampled_from(["def", "async def"]),
        METHODS,
        st.sampled_from(["self", "self, x", "ctx, *grads", "ctx, x, y=1", "x: 'torch.Tensor' = None, /, *, k", ""]),
        inner,
    ).map(lambda it: [line for line in (it[0],) if line] + [f"{it[1]} {it[2]}({it[3]}):", *indented(it[4])])
    classes = st.tuples(BASES, inner).map(lambda it: [f"class A({it[0]}):", *indented(it[1])])
    return st.one_of(
        around("if {}:", "elif {}:", "else:"),
        around("for x in {}:"),
        around("for i, (x, y) in {}:", "else:"),
        around("while {}:"),
        around("with {} as w:"),
        around("with torch.no_grad():"),
        around("try:", "except (A, B) as e:", "else:", "finally:"),
        functions,
        classes,
        st.tuples(EXPRESSIONS, inner).map(
            lambda it: [f"match {it[0]}:", *indented(["case A(x=1) | [_, *y]:", *indented(it[1])])]
        ),
    )


BLOCKS = st.recursive(
    st.lists(SIMPLE, max_size=4),
    lambda inner: st.lists(_blocks(inner), min_size=1, max_size=3).map(
        lambda blocks: [line for block in blocks for line in block]
    ),
    max_leaves=10,
)
HEAD = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n"
PROGRAMS = BLOCKS.map(lambda lines: HEAD + "\n".join(lines) + "\n")

EXAMPLES = [text for rule in all_rules() for one in rule.examples for text in (one.source, one.corrected)]


@st.composite
def tampered(draw: st.DrawFn) -> str:
    """A rule's example with lines dropped, repeated, swapped or moved between examples."""
    lines = draw(st.sampled_from(EXAMPLES)).splitlines()
    for _ in range(draw(st.integers(1, 4))):
        at, other = draw(st.integers(0, len(lines) - 1)), draw(st.integers(0, len(lines) - 1))
        match draw(st.sampled_from(["drop", "repeat", "swap", "borrow", "rename"])):
            case "drop" if len(lines) > 1:
                del lines[at]
            case "repeat":
                lines.insert(at, lines[at])
            case "swap":
                lines[at], lines[other] = lines[other], lines[at]
            case "borrow":
                lines.insert(at, draw(st.sampled_from(draw(st.sampled_from(EXAMPLES)).splitlines())))
            case "rename":
                old, new = draw(NAMES), draw(NAMES)
                lines[at] = lines[at].replace(old, new)
    ending = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    return ending.join(lines) + draw(st.sampled_from(["", ending]))
