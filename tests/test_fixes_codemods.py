"""Larger rewrites that several rules share."""
from __future__ import annotations

import ast

import pytest
from test_edits import find, model_of

import torchlint
from torchlint.config import Options
from torchlint.findings import Safety
from torchlint.fixes.containers import to_registered
from torchlint.fixes.detach import detach, detach_accumulated
from torchlint.fixes.imports import import_edits
from torchlint.fixes.layout import layout
from torchlint.fixes.no_grad import add_no_grad_decorator, data_to_no_grad, under_no_grad
from torchlint.fixes.parameters import tensor_to_parameter, to_buffer
from torchlint.fixes.super_init import add_super_init
from torchlint.model import FileModel
from torchlint.rule import Repair


def made(model: FileModel, *repairs: Repair | None) -> str:
    """The text after some repairs, those that are the same once."""
    assert repairs and all(repairs)
    edits = [edit for repair in dict.fromkeys(repairs) if repair for edit in repair.edits]
    imports = [text for repair in repairs if repair for text in repair.imports]
    text = layout(model.source).apply([*import_edits(model.source, imports), *edits])
    compile(text, "t.py", "exec")
    return text


# -- .data -----------------------------------------------------------------------------------

NO = "with torch.no_grad():\n"


@pytest.mark.parametrize(("text", "expected"), [
    ("w.data.add_(1)\n", f"{NO}    w.add_(1)\n"),
    ("w.data[i] = 0\n", f"{NO}    w[i] = 0\n"),
    ("w.data += g\n", f"{NO}    w += g\n"),
    ("(a if b else c).data.zero_()\n", f"{NO}    (a if b else c).zero_()\n"),
    ("w.data.add_(1)\nv.data.mul_(2)\n", f"{NO}    w.add_(1)\n    v.mul_(2)\n"),
    ("w.data.add_(1)\nx = 1\nv.data.mul_(2)\n", f"{NO}    w.add_(1)\nx = 1\n{NO}    v.mul_(2)\n"),
    ("for p in ps:\n    p.data -= p.grad\n", f"{NO}    for p in ps:\n        p -= p.grad\n"),
    ("for p in ps:\n    q = p.grad\n    p.data -= q\n",
     f"for p in ps:\n    q = p.grad\n    {NO}        p -= q\n"),
    ("for g in gs:\n    for p in g:\n        p.data.zero_()\nw.data.zero_()\n",
     f"{NO}    for g in gs:\n        for p in g:\n            p.zero_()\n    w.zero_()\n"),
    ("for p in ps:\n    p.data.zero_()\nelse:\n    x = 1\n",
     f"for p in ps:\n    {NO}        p.zero_()\nelse:\n    x = 1\n"),
    ("if c: w.data.zero_(); v.data.zero_()\n", f"if c:\n    {NO}        w.zero_(); v.zero_()\n"),
    (f"{NO}    w.data.add_(1)\n", f"{NO}    w.add_(1)\n"),
    ("y = w.data.add_(1)  # keep\n", f"{NO}    y = w.add_(1)  # keep\n"),
    ("[p.data.zero_() for p in ps]\n", f"{NO}    [p.zero_() for p in ps]\n"),
    ("w.data.add_(v.data)\n", f"{NO}    w.add_(v)\n"),
])
def test_data_to_no_grad(text, expected):
    model = model_of("import torch\n" + text)
    repairs = data_to_no_grad(model, model.attributes_named("data"))
    assert made(model, *repairs.values()) == "import torch\n" + expected


def test_neighbours_share_one_repair_and_import():
    model = model_of("def f(w, v):\n\tw.data.add_(1)\n\n\t# now v\n\tv.data.add_(1)\n")
    one, two = data_to_no_grad(model, model.attributes_named("data")).values()
    assert one == two and one.imports == ("import torch",)
    assert made(model, one) == (
        "import torch\n\ndef f(w, v):\n\twith torch.no_grad():\n\t\tw.add_(1)\n\n\t\t# now v\n\t\tv.add_(1)\n"
    )


@pytest.mark.parametrize("text", [
    "w.data = x\n", "f = lambda: w.data.zero_()\n", "if w.data.add_(1).sum() > 0:\n    pass\n",
    "g = (p.data.zero_() for p in ps)\n",
])
def test_data_without_repair(text):
    model = model_of("import torch\n" + text)
    assert data_to_no_grad(model, model.attributes_named("data")) == {}


def test_under_no_grad_uses_the_files_own_name():
    model = model_of("from torch import no_grad\nx = 1\ny = 2\n")
    assert made(model, under_no_grad(model, model.tree.body[1:])) == (
        "from torch import no_grad\nwith no_grad():\n    x = 1\n    y = 2\n"
    )


def test_no_grad_decorator():
    model = model_of("import torch\nclass A:\n    @staticmethod\n    def evaluate(x): return x\n")
    assert made(model, add_no_grad_decorator(model, model.nodes(ast.FunctionDef)[0])) == (
        "import torch\nclass A:\n    @staticmethod\n    @torch.no_grad()\n    def evaluate(x): return x\n"
    )
    model = model_of("import torch\ndef g():\n    yield 1\n")
    assert add_no_grad_decorator(model, model.nodes(ast.FunctionDef)[0]) is None


# -- containers ------------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "expected"), [
    ("[nn.Linear(1, 1)]", "nn.ModuleList([nn.Linear(1, 1)])"),
    ("[]", "nn.ModuleList()"),
    ("list()", "nn.ModuleList()"),
    ("()", "nn.ModuleList()"),
    ("{}", "nn.ModuleDict()"),
    ("[f(i) for i in range(3)]", "nn.ModuleList([f(i) for i in range(3)])"),
    ("[\n            a,  # one\n            b,\n        ]",
     "nn.ModuleList([\n            a,  # one\n            b,\n        ])"),
    ("a, b", "nn.ModuleList([a, b])"),
    ("(a, b)", "nn.ModuleList([a, b])"),
    ("(a,)", "nn.ModuleList([a])"),
    ("a,", "nn.ModuleList([a,])"),
    ("tuple(f(i) for i in x)", "nn.ModuleList(f(i) for i in x)"),
    ("list(x)", "nn.ModuleList(x)"),
    ("layers", "nn.ModuleList(layers)"),
    ("[a] * 3", "nn.ModuleList([a] * 3)"),
    ("([a] + [b])", "nn.ModuleList(([a] + [b]))"),
    ("{'a': a}", "nn.ModuleDict({'a': a})"),
    ("{k: f(k) for k in x}", "nn.ModuleDict({k: f(k) for k in x})"),
    ("dict(a=a)", "nn.ModuleDict(dict(a=a))"),
    ("[  # none yet\n        ]", "nn.ModuleList([  # none yet\n        ])"),
])
def test_to_registered(value, expected):
    text = "from torch import nn\nclass A(nn.Module):\n    def __init__(self):\n        self.x = VALUE\n"
    model = model_of(text.replace("VALUE", value))
    assign = model.nodes(ast.Assign)[0]
    repair = to_registered(model, assign.value)
    assert made(model, repair) == text.replace("VALUE", expected)
    empty = expected.replace("# none yet", "").rstrip(") \n[]").endswith(("ModuleList", "ModuleDict", "("))
    assert repair is not None and repair.safety is (Safety.UNSAFE if empty else Safety.SAFE)


def test_a_container_that_is_annotated_as_another_is_not_safe():
    model = model_of("from torch import nn\nclass A(nn.Module):\n  def f(self):\n    self.x: list = [nn.ReLU()]\n")
    repair = to_registered(model, model.nodes(ast.AnnAssign)[0].value)
    assert repair is not None and repair.safety is Safety.UNSAFE


@pytest.mark.parametrize("value", ["{a, b}", "set(x)", "{1: a}", "{('a', 1): a}", "{'a.b': a}", "{**d}"])
def test_what_torch_cannot_hold_is_left(value):
    model = model_of(f"from torch import nn\nx = {value}\n")
    assert to_registered(model, model.nodes(ast.Assign)[0].value) is None


@pytest.mark.parametrize(("use", "value", "safety"), [
    ("for a in X: pass", "[m]", Safety.SAFE),
    ("[a for a in X]", "[m]", Safety.SAFE),
    ("X[0](y)", "[m]", Safety.SAFE),
    ("X.append(m)", "[m]", Safety.SAFE),
    ("X += [m]", "[m]", Safety.SAFE),
    ("len(X)", "[m]", Safety.SAFE),
    ("nn.Sequential(*X)", "[m]", Safety.SAFE),
    ("for i, a in enumerate(X): pass", "[m]", Safety.SAFE),
    ("if X: pass", "[m]", Safety.SAFE),
    ("X.items()", "{'a': m}", Safety.SAFE),
    ("'a' in X", "{'a': m}", Safety.SAFE),
    ("f(X)", "[m]", Safety.UNSAFE),
    ("y = X", "[m]", Safety.UNSAFE),
    ("X + [m]", "[m]", Safety.UNSAFE),
    ("X.index(m)", "[m]", None),
    ("X.sort()", "[m]", None),
    ("X.get('a')", "{'a': m}", None),
])
def test_safety_depends_on_the_uses(use, value, safety):
    model = model_of(f"from torch import nn\nX = {value}\n{use}\n")
    uses = [name for name in model.nodes(ast.Name) if name.id == "X"][1:]
    repair = to_registered(model, model.nodes(ast.Assign)[0].value, uses)
    assert (repair.safety if repair is not None else None) == safety


def test_parameters_have_their_own_containers():
    model = model_of("import torch\nx = [torch.nn.Parameter(torch.ones(1))]\n")
    repair = to_registered(model, model.nodes(ast.Assign)[0].value, element="Parameter")
    assert made(model, repair) == (
        "import torch\nx = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(1))])\n"
    )


# -- parameters and buffers ------------------------------------------------------------------


@pytest.mark.parametrize(("value", "expected"), [
    ("torch.ones(3, requires_grad=True)", "torch.nn.Parameter(torch.ones(3))"),
    ("torch.ones(3).requires_grad_()", "torch.nn.Parameter(torch.ones(3))"),
    ("torch.ones(3).mul(2).requires_grad_(True)", "torch.nn.Parameter(torch.ones(3).mul(2))"),
    ("torch.autograd.Variable(torch.ones(3), requires_grad=True)", "torch.nn.Parameter(torch.ones(3))"),
    ("torch.ones(\n    3,\n    requires_grad=True,\n)", "torch.nn.Parameter(torch.ones(\n    3,\n))"),
    ("a * b", "torch.nn.Parameter(a * b)"),
    ("(a * b)", "torch.nn.Parameter((a * b))"),
])
def test_tensor_to_parameter(value, expected):
    model = model_of(f"import torch\nself.w = {value}\n")
    assert made(model, tensor_to_parameter(model, model.nodes(ast.Assign)[0].value)) == (
        f"import torch\nself.w = {expected}\n"
    )


@pytest.mark.parametrize(("stmt", "expected"), [
    ("self.m = torch.ones(3)  # mask", "self.register_buffer('m', torch.ones(3))  # mask"),
    ("self.m = (a +\n          b)", "self.register_buffer('m', (a +\n          b))"),
])
def test_to_buffer(stmt, expected):
    model = model_of(f"x = 'a'\n{stmt}\n")
    assert made(model, to_buffer(model, model.tree.body[1])) == f"x = 'a'\n{expected}\n"


@pytest.mark.parametrize("stmt", ["m = x", "self.m: T = x", "self.m = self.n = x", "self.m = 1, 2"])
def test_to_buffer_leaves_other_statements(stmt):
    model = model_of(f"{stmt}\n")
    assert to_buffer(model, model.tree.body[0]) is None


# -- super().__init__() ----------------------------------------------------------------------


def test_add_super_init():
    model = model_of("class A(B):\n    def __init__(self, x):\n        '''doc'''\n        self.x = x\n")
    cls, init = model.nodes(ast.ClassDef)[0], model.nodes(ast.FunctionDef)[0]
    assert made(model, add_super_init(model, init, cls)) == (
        "class A(B):\n    def __init__(self, x):\n        '''doc'''\n"
        "        super().__init__()\n        self.x = x\n"
    )


def test_add_super_init_as_the_file_writes_it():
    text = ("class A(B):\n  def __init__(me): me.x = 1\n"
            "class C(A):\n  def __init__(self):\n    super(C, self).__init__()\n")
    model = model_of(text)
    cls, init = model.nodes(ast.ClassDef)[0], model.nodes(ast.FunctionDef)[0]
    assert "  def __init__(me):\n    super(A, me).__init__()\n    me.x = 1\n" in made(
        model, add_super_init(model, init, cls)
    )


@pytest.mark.parametrize("text", [
    "class A(B):\n    def __init__(self, super):\n        self.x = super\n",
    "class A(B):\n    def __init__(self):\n        super = 1\n        self.x = super\n",
    "super = print\nclass A(B):\n    def __init__(self):\n        self.x = 1\n",
])
def test_no_super_init_where_the_name_is_taken(text):
    model = model_of(text)
    assert add_super_init(model, model.nodes(ast.FunctionDef)[0], model.nodes(ast.ClassDef)[0]) is None


# -- detach ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("stmt", "expected"), [
    ("total += loss", "total += loss.detach()"),
    ("total = total + loss", "total = total + loss.detach()"),
    ("total = loss + total", "total = loss.detach() + total"),
    ("losses.append(loss)", "losses.append(loss.detach())"),
    ("d['a'] = loss", "d['a'] = loss.detach()"),
    ("total += loss * 3", "total += loss.detach() * 3"),
    ("total += -loss / len(x)", "total += -loss.detach() / len(x)"),
    ("total += loss + w", "total += (loss + w).detach()"),
    ("total += f(loss)", "total += f(loss).detach()"),
])
def test_detach_accumulated(stmt, expected):
    head = "import torch\nw = torch.ones(1, requires_grad=True)\nloss = w.sum()\n"
    model = model_of(f"{head}{stmt}\n")
    assert made(model, detach_accumulated(model, model.tree.body[-1])) == f"{head}{expected}\n"


def test_detach_of_other_statements():
    model = model_of("total = loss\ntotal *= loss\nf(loss)\n")
    assert [detach_accumulated(model, stmt) for stmt in model.tree.body] == [None, None, None]
    assert made(model, detach(model, find(model, "loss", ast.Name))).startswith("total = loss.detach()\n")


@pytest.mark.parametrize("stmt", [
    "kept += [loss, w]", "kept += (loss,)", "kept += w.unbind(0)", "kept.append(loss if flag else 0.0)",
    "kept.append(loss and 1)",
])
def test_only_tensors_are_detached(stmt):
    head = "import torch\nw = torch.ones(1, requires_grad=True)\nloss = w.sum()\nkept = []\nflag = bool(kept)\n"
    model = model_of(f"{head}{stmt}\n")
    assert detach_accumulated(model, model.tree.body[-1]) is None


@pytest.mark.parametrize(("comment", "fixed"), [
    ("", True), ("    # weights_only fails here\n", False), ("    # old\n", True),
])
def test_weights_only_stays_where_a_comment_says_why(comment, fixed):
    text = f"import torch\n\n\ndef load(path):\n{comment}    return torch.load(path, weights_only=False)\n"
    options = Options(select=("TL904",))
    assert (torchlint.fix_source(text, options=options, unsafe=True) != text) == fixed


@pytest.mark.parametrize(("call", "version", "safe"), [
    ("torch.distributed.all_gather_into_tensor(x, y)", "", False),
    ("torch.distributed.all_gather_into_tensor(x, y)", "2.13", True),
    ("torch.cuda.amp.GradScaler()", "", True),
    ("torch.norm(x, dim=1)", "", True),
])
def test_a_name_that_is_new_in_torch_may_be_missing_where_the_code_runs(call, version, safe):
    text = f"import torch\nx = y = torch.ones(1, 2)\n{call}\n"
    options = Options(select=("TL902",), torch_version=version)
    assert torchlint.fix_source(text, options=options, unsafe=True) != text
    assert (torchlint.fix_source(text, options=options) != text) == safe


@pytest.mark.parametrize(("parameter", "order", "fixed"), [
    ("p", "2", True), ("p", "float('inf')", True), ("p: int = 2", "p", True), ("p: float = 2.0", "-p", True),
    ("p=2", "p", False), ("p: Union[int, str] = 2", "p", False), ("p", "'fro'", False), ("p", "self.p", False),
    ("p", "one", True),
])
def test_norms_of_an_order_that_may_be_a_word_stay(parameter, order, fixed):
    text = f"import torch\none = 1\n\n\ndef f(self, x, {parameter}):\n    return torch.norm(x, p={order}, dim=1)\n"
    assert (torchlint.fix_source(text, options=Options(select=("TL902",))) != text) == fixed


@pytest.mark.parametrize(("rest", "fixed"), [
    ("", True), ("layer.weight.mul_(2)", True), ("layer.weight_g.data.fill_(1)", False),
    ("setattr(layer, 'weight_v', None)", False), ("torch.nn.utils.remove_weight_norm(layer)", False),
])
def test_weight_norm_stays_where_its_tensors_or_its_removal_are_named(rest, fixed):
    text = f"import torch\nlayer = torch.nn.utils.weight_norm(torch.nn.Linear(1, 1))\n{rest}\n"
    assert (torchlint.fix_source(text, options=Options(select=("TL902",)), unsafe=True) != text) == fixed


@pytest.mark.parametrize(("rest", "fixed"), [
    ("pass", True), ("self.a = None", True), ("self.a = torch.ones(1, requires_grad=True)", True),
    ("self.a = self.a.to(device)", False), ("self.a = torch.zeros(1)", False), ("self.a = device", False),
])
def test_a_tensor_becomes_a_parameter_only_where_every_store_can(rest, fixed):
    text = ("import torch\nfrom torch import nn\n\n\nclass Net(nn.Module):\n    def __init__(self, device):\n"
            "        super().__init__()\n        self.a = torch.zeros(1, requires_grad=True)\n"
            f"        if device:\n            {rest}\n")
    made = torchlint.fix_source(text, options=Options(select=("TL404",)), unsafe=True)
    assert ("self.a = nn.Parameter(torch.zeros(1))" in made) == (made != text) == fixed


def test_weights_only_stays_off_where_it_was_tried_first():
    text = ("import torch\n\n\ndef load(path):\n    try:\n        return torch.load(path)\n    except ValueError:\n"
            "        return torch.load(path, weights_only=False)\n")
    assert torchlint.fix_source(text, options=Options(select=("TL904",)), unsafe=True) == text


@pytest.mark.parametrize(("call", "safe", "unsafe"), [
    ("torch.nn.parallel.DistributedDataParallel(net, broadcast_buffers=False)", False, False),
    ("torch.optim.lr_scheduler.StepLR(net, 1, verbose=False)", True, True),
    ("torch.optim.lr_scheduler.StepLR(net, 1, verbose=True)", False, True),
    ("torch.autograd.grad(net, net, only_inputs=False)", True, True),
])
def test_an_argument_is_left_out_only_where_it_does_nothing(call, safe, unsafe):
    text = f"import torch\nnet = torch.nn.Linear(1, 1)\n{call}\n"
    options = Options(select=("TL901", "TL902"))
    assert (torchlint.fix_source(text, options=options) != text) == safe
    assert (torchlint.fix_source(text, options=options, unsafe=True) != text) == unsafe
