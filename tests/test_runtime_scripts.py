"""Scripts whose data, sizes and names keep them from being run as they are."""
from __future__ import annotations

import ast
import contextlib
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

pytest.importorskip("torch")

import torch

from runtime_check import again
from runtime_check.drive import Drive, drives
from runtime_check.evidence import Outcome, Verdict
from runtime_check.extract import Namespace, target_at
from runtime_check.learned import Learned
from runtime_check.plan import from_finding
from runtime_check.pool import Pool
from runtime_check.search import Search
from runtime_check.specs import Assignment, Const, Made, Spec, Tensor
from runtime_check.unbound import data, is_unbound, only_handed_on, size_decides
from torchlint.claims import Claim, Equivalent, Warns
from torchlint.findings import Confidence, Finding, Severity, Span

torch.set_num_threads(1)


def ways(text: str, line: int | None = None) -> tuple[Namespace, Callable[[], list[Drive]]]:
    """The namespace of a text and what lists its first drives for the line that ends in `#!`."""
    text = textwrap.dedent(text).lstrip("\n")
    line = line or next(number for number, row in enumerate(text.splitlines(), 1) if "#!" in row)
    space = Namespace(text, "scripted_case.py")
    return space, lambda: [drive for _, drive in zip(range(12), drives(space, target_at(text, line)), strict=False)]


UNREAD = """
    import argparse
    import torch
    from torch import nn
    parser = argparse.ArgumentParser()
    parser.add_argument("--img_size", type=int, default=512)
    parser.add_argument("--channels", type=int, default=3)
    opt = parser.parse_args()
    net = nn.Conv2d(opt.channels, 4, 3)
    loader = torch.utils.data.DataLoader([], batch_size=4, shuffle=True)
    held_out = torch.utils.data.DataLoader([], batch_size=4, shuffle=True)
    def show(step):
        batch = next(iter(held_out))
        seen.append(net(batch["left"]).shape)  #!
    seen = []
    for epoch in range(3):
        for i, batch in enumerate(loader):
            if i % 2 == 0:
                show(epoch * len(loader) + i)
"""


def test_loaders_that_a_call_depends_on_are_made_up_in_the_form_that_functions_take_apart() -> None:
    space, found = ways(UNREAD)
    called = [drive for drive in found() if drive.kind == "call"]
    called[0].run()
    (shape,) = space.globals["seen"]
    assert shape[:2] == (2, 4)
    assert any("`held_out` of line 10 is made up (ValueError" in text for text in space.skipped)


def test_a_call_in_a_heavy_script_is_tried_with_small_sizes_first() -> None:
    space, found = ways(UNREAD)
    called = [drive for drive in found() if drive.kind == "call"]
    small = [drive.label.endswith(", with small sizes") for drive in called]
    assert small == sorted(small, reverse=True)
    assert "as called on line 18" in [drive.label for drive in called]
    sides = []
    for label in ("as called on line 18, with small sizes", "as called on line 18"):
        next(drive for drive in called if drive.label == label).run()
        sides.append(space.globals["seen"][0][-1])
    assert sides == [62, 510]


NAMELESS = """
    import argparse
    import torch
    from torch import nn
    from torch.autograd import Variable
    parser = argparse.ArgumentParser()
    parser.add_argument("--img_size", type=int, default=28)
    parser.add_argument("--channels", type=int, default=1)
    opt = parser.parse_args()
    net = nn.Sequential(nn.Conv2d(opt.channels, 4, 3), nn.Flatten(), nn.LazyLinear(1))
    net.apply(start_small)
    for images, _ in train_loader:
        x = Variable(images)  #!
        loss = net(x).mean()
        loss.backward()
"""


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool(1) as running:
        yield running


def told(pool: Pool, text: str, claim: Claim, good: tuple[str, str] | None = None, column: int = 1) -> Outcome:
    """The outcome of a finding on the line that ends in `#!`, for which `good` replaces some text."""
    text = textwrap.dedent(text).lstrip("\n")
    line = next(number for number, row in enumerate(text.splitlines(), 1) if "#!" in row)
    span = Span(line, column, line, column + 1)
    finding = Finding("script.py", span, "TL905", "test", Severity.ERROR, Confidence.SURE, "message")
    case = from_finding(finding, claim, text, 0, seconds=30)
    if good is not None:
        corrected = text.replace(*good)
        assert corrected != text
        case = replace(case, corrected=corrected, mended=case.flagged, correction="with the fix")
    ((_, outcome),) = pool.run([case])
    return outcome


def test_what_is_shown_with_stand_ins_for_names_that_nothing_binds_is_told_with_them(pool: Pool) -> None:
    outcome = told(pool, NAMELESS, Equivalent(), ("Variable(images)", "images"))
    assert outcome.verdict is Verdict.CONFIRMED, outcome.why
    assert outcome.how.endswith(", with stand-ins for names that nothing binds")
    assert "`train_loader` is bound nowhere in script.py: made-up batches stood in for it" in outcome.why
    assert "`start_small` is bound nowhere in script.py: a function that does nothing stood in for it" in outcome.why


def test_other_claims_rest_on_no_stand_in_for_a_function_and_are_not_refuted_with_made_up_batches(pool: Pool) -> None:
    outcome = told(pool, NAMELESS, Warns("never"))
    assert outcome.verdict is Verdict.NOT_REACHED and "start_small" in outcome.why
    outcome = told(pool, NAMELESS.replace("net.apply(start_small)", "pass"), Warns("never"))
    assert outcome.verdict is Verdict.CANNOT_TELL and "made-up batches stood in" in outcome.why, outcome.why


@pytest.mark.parametrize("changed", [
    ("train_loader:", "[(batch_of_nobody, 0)]:"),  # its kind is not known
    ("x = Variable(images)  #!", "x = Variable(noise_level)  #!"),  # the flagged line itself reads it
])
def test_no_stand_in_is_given_for(pool: Pool, changed: tuple[str, str]) -> None:
    outcome = told(pool, NAMELESS.replace(*changed), Equivalent(), ("Variable(", "("))
    assert outcome.verdict is Verdict.NOT_REACHED or "NameError" in outcome.why, outcome.why
    assert outcome.verdict in (Verdict.NOT_REACHED, Verdict.CANNOT_TELL)


def test_no_name_that_the_file_asks_for_has_a_stand_in() -> None:
    text = "try:\n    epochs\nexcept NameError:\n    width = 3\nprint(rate)\n"
    assert not is_unbound(Namespace(text, "asking_case.py"), "epochs")
    assert is_unbound(Namespace("print(rate)\n", "plain_case.py"), "rate")
    assert not is_unbound(Namespace("from no_such_module import *\nprint(rate)\n", "star_case.py"), "rate")


CRAMPED = """
    import argparse
    import torch
    from torch import nn
    parser = argparse.ArgumentParser()
    parser.add_argument("--image_size", type=int, default=512)
    opt = parser.parse_args()
    layers = [nn.Conv2d(1, 1, 4, 2, 1) for _ in range(6)]
    net = nn.Sequential(*layers, nn.InstanceNorm2d(1))
    def step(images):
        seen.append((images.shape[-1], net(images).shape[-1]))  #!
    seen = []
    step(torch.randn(1, 1, opt.image_size, opt.image_size))
"""


def test_images_are_made_larger_where_the_network_says_that_they_are_too_small() -> None:
    space, _ = ways(CRAMPED)
    line = next(number for number, row in enumerate(space.text.splitlines(), 1) if "#!" in row)
    learned = Learned()
    found = drives(space, target_at(space.text, line), learned=learned)
    first = next(found)
    with pytest.raises(ValueError, match="more than 1 spatial element"):
        first.run()
    second = next(found)
    second.run()
    assert second.label == f"{first.label} but images twice as large"
    assert space.globals["seen"] == [(128, 2)]
    again = Namespace(space.text, "scripted_case.py")  # the corrected program is run in the same ways
    labels = [drive.label for drive in drives(again, target_at(space.text, line), learned=learned.copy(), made=False)]
    assert labels[:2] == [first.label, second.label]


def test_a_variable_whose_gradient_is_asked_for_by_a_name_is_compared_with_the_tensor(pool: Pool) -> None:
    outcome = told(pool, """
        import torch
        from torch.autograd import Variable
        def noise(shape, req_grad=False):
            z = Variable(torch.randn(shape) * 2, requires_grad=req_grad)  #!
            return z
        noise(3, True).sum().backward()
    """, Equivalent(), column=9)
    assert outcome.verdict is Verdict.CONFIRMED and "with the advice followed" in outcome.why, outcome.why


# The corrected program is given what the flagged one was given


def first_found(key: str, starts: list[Assignment], accepted: str) -> str:
    """The label of the first arguments that a search finds which accepts some only."""

    def run(chosen: Assignment) -> str:
        if accepted not in chosen.label:
            raise ValueError("other arguments")
        return chosen.label

    return next(Search(run, lambda chosen, failure: [], 5.0, key=key).results(starts)).arguments.label


def only(name: str, spec: Spec) -> Assignment:
    return Assignment(((name, spec),))


def test_a_search_for_the_same_begins_with_what_was_found() -> None:
    starts = [only("x", Tensor((2, 4))), only("x", Tensor((2, 3, 4)))]
    assert first_found("Net.forward", starts, "2, 3, 4") == "x=torch.randn(2, 3, 4)"
    with again.given(again.found()):
        assert first_found("Net.forward", starts, "torch.randn") == "x=torch.randn(2, 3, 4)"
        assert first_found("Other.forward", starts, "torch.randn") == "x=torch.randn(2, 4)"
    assert first_found("Net.forward", starts, "torch.randn") == "x=torch.randn(2, 4)"


def test_what_is_made_of_the_code_of_one_program_is_not_given_to_the_other() -> None:
    mine, other = Made("a model", lambda: "mine"), Made("a model", lambda: "other")
    assert first_found("train", [only("model", mine)], "a model") == "model=a model"
    moved = again.taken_over(again.found()["train"], [only("model", other)])
    assert moved is not None and moved.make() == ([], {"model": "other"})
    assert again.taken_over(again.found()["train"], [only("model", Const(3))]) is None


TARGETS = """
    import argparse
    import torch
    from torch import nn
    parser = argparse.ArgumentParser()
    parser.add_argument("--img_size", type=int, default=32)
    opt = parser.parse_args()
    net = nn.Sequential(nn.Flatten(), nn.LazyLinear(7))
    loader = torch.utils.data.DataLoader([], batch_size=4, shuffle=True)
    def show(step):
        images, labels = next(iter(loader))
        seen.append(labels[0][3])  #!
    seen = []
    for i, (images, labels) in enumerate(loader):
        loss = nn.functional.binary_cross_entropy_with_logits(net(images), labels.float())
        loss.backward()
        show(i)
"""


def test_what_a_loss_says_of_its_targets_helps_calls_as_well() -> None:
    space, _ = ways(TARGETS)
    line = next(number for number, row in enumerate(space.text.splitlines(), 1) if "#!" in row)
    ran = []
    for drive in drives(space, target_at(space.text, line), learned=Learned(), made=False):
        with contextlib.suppress(Exception):
            drive.run()
            ran.append(drive.label)
        if ran:
            break
    assert ran == ["as called on line 16, with small sizes and data of form 2"]
    assert space.globals["seen"][0].dim() == 0


def test_sizes_are_those_of_the_text_again_after_a_run_with_small_ones() -> None:
    space, found = ways("""
        import torch
        hidden_dim = 4096
        def run(width):
            return torch.ones(width)  #!
        run(hidden_dim)
    """)
    small = next(drive for drive in found() if drive.label.endswith("small sizes"))
    assert small.run().numel() < 4096  # type: ignore[attr-defined]
    space.reset()
    assert space.get("hidden_dim") == 4096


@pytest.mark.parametrize(
    "line",
    [
        "import sys\nsys.modules['__main__'].rate = 1",
        "import builtins\nbuiltins.rate = 1",
        "import builtins as b\nb.rate = 1",
        "import sys\nhere = sys.modules[__name__]\nhere.rate = 1",
        "globals()['rate'] = 1",
        "vars()['rate'] = 1",
        "import sys\nsetattr(sys.modules[__name__], 'rate', 1)",
    ],
)
def test_names_that_are_set_through_modules_are_bound(line: str) -> None:
    assert not is_unbound(Namespace(f"{line}\nprint(rate)\n", "setting_case.py"), "rate")


def test_a_hook_whose_value_counts_is_no_function_that_does_nothing() -> None:
    tree = ast.parse("net.register_forward_hook(change)\nnet.apply(start)\n")
    assert not only_handed_on(tree, "change") and only_handed_on(tree, "start")


def test_no_made_up_size_decides_a_comparison() -> None:
    text = "if len(losses) > len({}):\n    losses.clear()\nfor x in loader:\n    print(x)\n"
    assert size_decides(ast.parse(text.format("test_set")), "test_set")
    assert not size_decides(ast.parse(text.format("loader")), "loader")
    assert data(Namespace(text.format("test_loader"), "size_case.py"), "test_loader") is None
    assert data(Namespace(text.format("loader"), "size_case.py"), "loader") is not None
