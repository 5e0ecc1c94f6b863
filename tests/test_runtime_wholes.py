"""Ways to code that only the right configuration, a whole model or a corrected program shows: found in models."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable

import pytest

pytest.importorskip("torch")

import torch

from runtime_check import clock
from runtime_check.advice import advised
from runtime_check.asked import asked_by
from runtime_check.blame import Context
from runtime_check.calls import CallGraph
from runtime_check.containers import wholes
from runtime_check.drive import drives
from runtime_check.evidence import Verdict
from runtime_check.extract import Namespace, target_at
from runtime_check.inputs import InputGuesser
from runtime_check.made import Action, Maker, reaches
from runtime_check.modules import construction_candidates, constructions, running
from runtime_check.plan import Case, Lines
from runtime_check.probes import hooks_skipped, slower, values
from runtime_check.probes.bench import Bench
from runtime_check.repair import repairs
from runtime_check.sandbox import Guard
from runtime_check.search import Failure, Search
from runtime_check.specs import Assignment, Const, Spec, Tensor
from runtime_check.training import TrainingGuesser
from torchlint.claims import HooksSkipped, Slower


def line_of(text: str, mark: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if line.endswith(f"#{mark}"))


def reached(text: str, mark: str, budget: float = 3.0) -> bool:
    """Whether one of the first ways to a marked line executes it."""
    space, line = Namespace(text, "wholes_case.py"), line_of(text, mark)
    found = drives(space, target_at(text, line), budget_s=budget)
    return any(reaches(drive.run, space.path, line) for drive, _ in zip(found, range(12), strict=False))


# -- pieces that are concatenated in a loop -------------------------------------------------------

GROWING = {
    "first in the other arm": """
        def grow(xs):
            for i, x in enumerate(xs):
                if i == 0:
                    out = x
                else:
                    y = x * 2
                    out = torch.cat(
                        [out, y], 0)  #here
            return out
        """,
    "before all others": """
        def grow(xs):
            out = None
            for pair in zip(xs, xs):
                for x in pair:
                    out = x if out is None else torch.cat((x + 1, out))  #here
            return out
        """,
    "begun anew": """
        def grow(xs):
            found = []
            for _ in range(2):
                out = xs[0][:0]
                for x in xs:
                    out = torch.cat([out, x, x])  #here
                found.append(out)
            return torch.stack(found)
        """,
    "no piece at all": """
        def grow(xs):
            out = xs[0]
            while len(xs) > 99:
                out = torch.cat([out, xs[1]])  #here
            return out
        """,
}


@pytest.mark.parametrize("name", GROWING)
def test_pieces_are_collected_and_concatenated_once(name: str) -> None:
    text = "import torch\n" + textwrap.dedent(GROWING[name])
    tree = ast.parse(text)
    last = line_of(text, "here")
    statement = max((node for node in ast.walk(tree) if isinstance(node, ast.Assign) and node.lineno <= last),
                    key=lambda node: node.lineno)
    better = advised("TL606", text, statement.lineno, statement.end_lineno or 0)
    assert "torchlint_pieces.extend(" in str(better) or "torchlint_pieces.__setitem__(" in str(better)
    results = []
    for program in (text, str(better)):
        scope: dict[str, object] = {}
        exec(program, scope)
        grow = scope["grow"]
        assert callable(grow)
        results.append(grow(list(torch.arange(6.0).view(3, 2))))
    assert torch.equal(*results)
    body = ast.unparse(ast.parse(str(better)))
    assert body.count("torch.cat(") == 1, body


def test_what_is_no_growing_tensor_has_no_corrected_program() -> None:
    assert advised("TL606", "import torch\nfor x in y:\n    out = torch.stack([out, x])\n", 3, 3) is None
    assert advised("TL606", "import torch\nout = torch.cat([out, x])\n", 2, 2) is None


FRAMES = """
import torch
from torch import nn


class Frames(nn.Module):
    def __init__(self, width: int = 128):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, width, 3), nn.Conv2d(width, width, 3), nn.Conv2d(width, WIDE, 3))

    def forward(self, x):
        for i in range(8):
            if i == 0:
                out = self.layers(x)
            else:
                out_ = self.layers(x)
                out = torch.cat([out, out_], 2)  #here
        return out
"""


@pytest.mark.parametrize(("width", "verdict"), [("2", Verdict.REFUTED), ("4 * width", None)])
def test_a_line_that_takes_next_to_nothing_of_its_loop_costs_nothing(width: str, verdict: Verdict | None) -> None:
    text = FRAMES.replace("WIDE", width)
    line = line_of(text, "here")
    case = Case(1, "frames_case.py", "TL606", "", Slower(), text, (Lines(line, line),))
    bench = Bench(case, Guard(()))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in the processes of experiments
    try:
        way = next(bench.ways(bench.flagged))
        outcome = slower.little(bench, way)
    finally:
        torch.set_num_threads(threads)
    assert (outcome.verdict if outcome is not None else None) is verdict, outcome
    other = Case(1, "frames_case.py", "TL607", "", Slower(), text, (Lines(line, line),))
    assert slower.little(Bench(other, Guard(())), way) is None  # its cost may be elsewhere


# -- what conditions ask for ----------------------------------------------------------------------

CODEC = """
import torch
from torch import nn


class Codec(nn.Module):
    def __init__(self, width=8, table=False, count=4):
        super().__init__()
        self.config = Settings(width, table, count)
        self.layer = nn.Linear(width, width)
        self.slow = False
        if count > 4:
            self.register_buffer("used", torch.ones(count))

    def forward(self, x: torch.Tensor, force=False):
        if not force:
            x = self.layer(x)
        elif self.config.table:
            x = x + 1  #table
        if self.slow:
            x = x * 2  #slow
        return x

    def used_of(self, x: torch.Tensor):
        used = self.used.sum()
        return x * used  #used


class Settings:
    def __init__(self, width, table, count):
        self.width, self.table, self.count = width, table, count
"""


@pytest.mark.parametrize("mark", ["table", "slow", "used"])
def test_what_an_instance_keeps_is_set_as_conditions_ask(mark: str) -> None:
    assert reached(CODEC, mark)


def test_attributes_that_exist_under_conditions_are_asked_for() -> None:
    tree = ast.parse(CODEC)
    assert dict(asked_by(tree, "Codec.used_of", line_of(CODEC, "used")).made.values) == {"count": 5}
    table = asked_by(tree, "Codec.forward", line_of(CODEC, "table"))
    assert ("table", True) in table.made.values and dict(table.called.values) == {"force": True}
    slow = asked_by(tree, "Codec.forward", line_of(CODEC, "slow"))
    assert slow.switched == (("slow", True),) and slow.label == "; then .slow = True"


def attend(x: torch.Tensor, context: torch.Tensor | None = None, twice: bool = False) -> torch.Tensor:
    if context is not None:
        if twice:
            x, extra = context, x
        else:
            x, extra = context, context
    return x + extra


def test_a_variable_that_some_branches_bind_asks_for_one_of_them() -> None:
    given = Assignment((("x", Tensor((2, 3))), ("context", Const(None))))
    candidates: dict[str, list[Spec]] = {"context": [Const(None), Tensor((2, 4))], "twice": [Const(False)]}
    failure = Failure(UnboundLocalError("cannot access local variable 'extra' where it is not associated"), 9, ())
    found = list(repairs(Context(given, failure, attend, candidates)))
    assert found[0].get("context") == Tensor((2, 4)) and found[0].get("twice") == Const(True)
    assert found[1].get("context") == Tensor((2, 4)) and found[1].get("twice") == Const(False)


# -- the search -----------------------------------------------------------------------------------


def denoise(sample: torch.Tensor, timestep_ratio: torch.Tensor) -> torch.Tensor:
    """Nothing is read from it: the name tells."""
    return sample


def test_a_ratio_of_timesteps_is_one_number_for_each_item() -> None:
    _, candidates = InputGuesser(denoise).starts()
    assert [spec.shape for spec in candidates["timestep_ratio"][:2] if isinstance(spec, Tensor)] == [(2,), (2,)]


@pytest.mark.parametrize(("text", "shape", "wanted"), [
    ("permute(sparse_coo): number of dimensions in the tensor input does not match the length of the desired ordering"
     " of dimensions i.e. input.dim() = 3 is not equal to len(dims) = 4", (2, 8), (2, 8, 8)),
    ("Given normalized_shape=[32], expected input with shape [*, 32], but got input of size[2, 128, 1]", (2, 5),
     (2, 8, 5)),
    ("Calculated padded input size per channel: (9). Kernel size: (16). Kernel size can't be greater than actual"
     " input size", (2, 2, 256), (2, 2, 4096)),
    ("only one element tensors can be converted to Python scalars", (2, 8), 2),
])
def test_errors_inside_the_code_name_what_to_try(text: str, shape: tuple[int, ...], wanted: object) -> None:
    given = Assignment((("x", Tensor(shape)),))
    found = list(repairs(Context(given, Failure(RuntimeError(text), 9, ()), lambda x: x, {})))[:8]
    assert wanted in [spec.shape if isinstance(spec, Tensor) else getattr(spec, "value", None)
                      for one in found for _, spec in one.items]


def test_only_what_is_long_in_one_direction_is_made_very_long() -> None:
    text = "Calculated padded input size per channel: (2 x 2). Kernel size: (3 x 3). Kernel size can't be greater"
    given = Assignment((("x", Tensor((2, 3, 512))),))
    found = list(repairs(Context(given, Failure(RuntimeError(text), 9, ()), lambda x: x, {})))
    assert found and all(max(spec.shape) <= 512 for one in found for _, spec in one.leaves())


def test_failures_that_nothing_changes_are_repaired_a_few_times_only() -> None:
    repaired: list[Assignment] = []

    def run(chosen: Assignment) -> None:
        raise ValueError("always the same")

    def repair(chosen: Assignment, failure: Failure) -> list[Assignment]:
        repaired.append(chosen)
        return [chosen.put("more", Const(f"{len(repaired)} {number}")) for number in range(12)]

    search = Search(run, repair, 5.0)
    assert not list(search.results([Assignment((("x", Const(number)),)) for number in range(9)]))
    assert len(repaired) == 4 and len(search.tried) == 9 + 4 * 12


OPTIONAL = """
import torch
from torch import nn


class Patches(nn.Module):
    def __init__(self, width: int = 2048, patch_size: int | None = None):
        super().__init__()
        self.patch_size = patch_size
        self.layer = nn.Sequential(nn.Linear(width, 2 * width), nn.Linear(2 * width, 4 * width))

    def forward(self, x: torch.Tensor):
        if self.patch_size is not None:
            raise RuntimeError("no patches here")
        return self.layer(x)
"""


def test_a_smaller_configuration_turns_nothing_on() -> None:
    cls = Namespace(OPTIONAL, "optional_case.py").resolve("Patches")
    assert isinstance(cls, type)
    first = next(running(cls, 2.0))
    assert first.inputs is not None and first.made.label == "width=32"


HALVES = """
import torch
from torch import nn


class Halves(nn.Module):
    def __init__(self, width: int = 16_384, half_channels: int = 8192, heads: int = 64, bias: bool = False):
        super().__init__()
        self.both = torch.ones(width) + torch.ones(2 * half_channels)
        self.layer = nn.Linear(half_channels, width)

    def forward(self, x: torch.Tensor):
        return self.layer(x)
"""


def test_small_sizes_keep_their_proportions() -> None:
    cls = Namespace(HALVES, "halves_case.py").resolve("Halves")
    assert isinstance(cls, type)
    assert next(constructions(cls, 2.0)).label == "width=32, half_channels=16, heads=4"


ATTENTION = """
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.layer = nn.Conv2d(3, width, 1)

    def forward(self, x, mask=None, extra=None):
        x = self.layer(x).flatten(2)
        weights = (x.transpose(1, 2) @ x).softmax(-1)
        if extra is not None:
            parts = weights
        return (parts @ x.transpose(1, 2)).sum()
"""


def test_attempts_that_take_long_are_repaired_with_smaller_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime_check.search.SLOW", 0.0)  # whatever takes any time
    cls = Namespace(ATTENTION, "attention_case.py").resolve("Attention")
    assert isinstance(cls, type)
    first = next(running(cls, 0.4))
    assert first.inputs is not None and first.inputs.get("x") == Tensor((2, 3, 16, 16)), first
    large = Assignment((("x", Tensor((2, 3, 64, 32))), ("y", Tensor((2, 3, 16, 64))), ("z", Tensor((2, 3, 64)))))
    assert [spec.shape for _, spec in large.smaller().leaves()] == [(2, 3, 16, 8), (2, 3, 16, 64), (2, 3, 64)]


DISTRIBUTION = """
import torch


class Gaussian:
    def __init__(self, parameters: torch.Tensor, meter=None):
        self.mean, self.spread = parameters.chunk(2, dim=1)
        self.meter = meter

    def kl(self):
        return (self.mean ** 2 + self.spread).sum()  #kl
"""


def test_parameters_are_no_meter() -> None:
    cls = Namespace(DISTRIBUTION, "gaussian_case.py").resolve("Gaussian")
    assert isinstance(cls, type)
    candidates, _ = construction_candidates(cls, lambda function, owner: TrainingGuesser(function, owner, []))
    assert candidates["parameters"][0] == Tensor((32,))
    assert reached(DISTRIBUTION, "kl")


def test_time_for_models_beyond_its_share_is_not_taken_from_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    space = Namespace(DISTRIBUTION, "gaussian_case.py")
    maker = Maker(space, target_at(DISTRIBUTION, line_of(DISTRIBUTION, "kl")), 1.0)

    def slow(space: object, budget_s: float) -> list[object]:
        end = clock.now() + budget_s + 1.0
        while clock.now() < end:
            pass
        return []

    monkeypatch.setattr("runtime_check.made.recipes_for", slow)
    maker.models()
    assert maker.left > 0.5
    given = maker.waiting(Action("a long run", lambda: None))
    left = (next(given), maker.left)[1]
    slow(space, 0.0)
    assert next(given, None) is None and maker.left > left - 0.1


MANY = """
import torch
from torch import nn


class Many(nn.Module):
    made = 0

    def __init__(self, a: int = 64, b: int = 64, c: int = 64, d: int = 64, e: bool = False):
        super().__init__()
        Many.made += 1
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        Many.called = getattr(Many, "called", 0) + 1
        return self.layer(x)

    def decode(self, x: torch.Tensor):
        return x + 1  #decode
"""


def test_few_instances_are_made_for_a_method_that_forward_does_not_call() -> None:
    space, line = Namespace(MANY, "many_case.py"), line_of(MANY, "decode")
    labels = [action.label for action in Maker(space, target_at(MANY, line), 3.0).actions()]
    assert ").decode(" in labels[0], labels
    assert len([label for label in labels if "decode" not in label]) == 2, labels


POOLED = """
import torch
from torch import nn


class Pooled(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base
        last = self.base.get_classifier()
        self.base.conv = nn.Conv2d(self.base.num_features, self.base.num_classes, kernel_size=1)
        shape = self.base.conv.weight.size()
        self.base.conv.weight.data.copy_(last.weight.data.view(shape))  #copied
        self.base.reset_classifier(0)

    def forward(self, x):
        return self.base.conv(self.base(x))
"""


def test_a_model_that_is_given_has_a_last_layer() -> None:
    assert reached(POOLED, "copied")


# -- wholes ---------------------------------------------------------------------------------------

NESTED = """
import torch
from torch import nn


class Part(nn.Module):
    def forward(self, x, cache=None, where=[0]):
        if cache is not None:
            index = where[0]
            if cache[index] is None:
                cache[index] = x
            else:
                x = x + cache[index]  #again
        return x


class Stack(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.part = Part()
        self.layer = nn.Linear(width, width)

    def forward(self, x, cache=None, where=[0]):
        return self.layer(self.part(x, cache, where))


class Whole(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.stack = Stack(width)

    def forward(self, x):
        cache = [None]
        for _ in range(2):
            out = self.stack(x, cache, [0])
        return out
"""


def test_a_part_is_run_by_the_whole() -> None:
    assert wholes(CallGraph(ast.parse(NESTED)), "Part.forward") == ["Whole", "Stack"]
    assert reached(NESTED, "again")


@pytest.mark.parametrize("made", [True, False])
def test_a_search_begins_when_what_the_file_does_itself_was_tried(monkeypatch: pytest.MonkeyPatch, made: bool) -> None:
    from runtime_check import driver

    asked: list[str] = []
    monkeypatch.setattr(driver.Driver, "made", noting(driver.Driver.made, asked))
    text = NESTED + "\n\nprint(Whole()(torch.ones(1, 8)).sum())\n"
    line = line_of(text, "again")
    case = Case(1, "wholes_case.py", "TL401", "", HooksSkipped(), text, (Lines(line, line),))
    bench = Bench(case, Guard(()))
    kinds = [way.kind for way, _ in zip(bench.all_ways(bench.flagged, None, made), range(3), strict=False)]
    assert "made" not in kinds and not asked


def noting(real: Callable[..., object], into: list[str]) -> Callable[..., object]:
    """A method that notes that it is called."""

    def method(self: object, target: object, *args: object) -> object:
        into.append(str(target))
        return real(self, target, *args)

    return method


def test_objects_that_refer_to_each_other_are_looked_at_so_often_only() -> None:
    nodes: list[dict[str, object]] = [{} for _ in range(12)]
    for node in nodes:
        node.update({str(number): other for number, other in enumerate(nodes)})
    began = clock.now()
    assert not list(values.flat(nodes)) and clock.now() - began < 1.0
    plain = dict(values.flat({"a": [1, 2.0], "b": {"c": "d"}, "e": (nodes, 3)}))
    assert plain == {"['a'][0]": 1, "['a'][1]": 2.0, "['b']['c']": "d"}


# -- code that cannot run to its end ---------------------------------------------------------------

ENDS = """
import torch
from torch import nn

fast = None


class Processor(nn.Module):
    def __init__(self, width: int = 8):
        super().__init__()
        self.layer = nn.Linear(width, width)

    def __call__(self, x: torch.Tensor, mask=None):  #call
        x = self.layer(x)
        return fast.attention(x, mask)
"""


@pytest.mark.parametrize(("corrected", "verdict"), [
    (ENDS.replace("__call__", "forward"), Verdict.CONFIRMED),
    (ENDS, Verdict.CANNOT_TELL),
    (ENDS.replace("__call__", "forward").replace("fast = None", "fast = 1"), Verdict.CANNOT_TELL),
])
def test_hooks_before_forward_tell_where_no_call_comes_to_its_end(corrected: str, verdict: Verdict) -> None:
    line = line_of(ENDS, "call")
    case = Case(1, "ends_case.py", "TL401", "", HooksSkipped(), ENDS, (Lines(line, line),), corrected,
                (Lines(line, line),))
    outcome = hooks_skipped.probe(Bench(case, Guard(())))
    assert outcome.verdict is verdict, outcome
