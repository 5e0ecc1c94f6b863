"""The demo: each planted fault is found as soon as its rule exists, and nothing else is reported."""
from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from torchlint.config import load
from torchlint.findings import Finding
from torchlint.rule import LAYERS, all_rules
from torchlint.runner import lint_paths

DEMO = Path(__file__).parent.parent / "demo"

# file, rule, how the line that is reported begins
PLANTED = (
    ("data.py", "dataset-mutated-in-getitem", "picture -= picture.mean()"),
    ("layers.py", "missing-staticmethod", "def forward(ctx, x, levels):"),
    ("layers.py", "missing-staticmethod", "def backward(ctx, grad_output):"),
    ("layers.py", "ctx-attr-tensor", "ctx.y = y"),
    ("layers.py", "function-instance-call", "return x if self.levels is None else Round()(x, self.levels)"),
    ("layers.py", "data-mutation", "self.weight.data.div_(self.weight.data.norm())"),
    ("layers.py", "unregistered-parameter", "self.queries = torch.randn(queries, width, requires_grad=True)"),
    ("layers.py", "functional-dropout-without-training", "weights = F.dropout(weights, self.drop)"),
    ("layers.py", "missing-super-init", "def __init__(self, start: float = 1.0)"),
    ("losses.py", "missing-create-graph", "(slope,) = torch.autograd.grad(outputs.sum(), pictures)"),
    ("losses.py", "log1p", "return -torch.log(1 + picked).mean()"),
    ("model.py", "overridden-call", "def __call__(self, x: torch.Tensor) -> torch.Tensor:"),
    ("model.py", "modules-in-plain-container", "self.blocks = [ResidualBlock("),
    ("model.py", "nonleaf-parameter", "self.prior = nn.Parameter(prior.log()).float()"),
    ("model.py", "data-initialisation", "self.head.weight.data.normal_(0.0, 0.02)"),
    ("model.py", "direct-forward-call", "features = self.pool(self.encoder.forward(pictures))"),
    ("model.py", "requires-grad-typo", "parameter.require_grad = False"),
    ("parallel.py", "sampler-epoch-not-set", "for pictures, labels in loader:"),
    ("parallel.py", "saved-on-every-rank", "torch.save(model.module.state_dict()"),
    ("train.py", "result-not-assigned", "pictures.to(device)"),
    ("train.py", "softmax-before-cross-entropy", "loss = criterion(outputs, labels)"),
    ("train.py", "softmax-before-cross-entropy", "losses.append(F.cross_entropy(scores, labels))"),
    ("train.py", "clip-after-step", "nn.utils.clip_grad_norm_(model.parameters(), 1.0)"),
    ("train.py", "graph-retained-in-loop", "total += loss"),
    ("train.py", "graph-retained-in-loop", "losses.append(F.cross_entropy(scores, labels))"),
    ("train.py", "empty-cache-in-loop", "torch.cuda.empty_cache()"),
    ("train.py", "missing-no-grad", "scores = model(pictures)"),
    ("train.py", "create-then-move", "confusion = torch.zeros(len(NAMES), len(NAMES)).to(device)"),
    ("train.py", "sync-in-hot-loop", "hits += (outputs.argmax(dim=1) == labels).sum().item()"),
    ("train.py", "missing-zero-grad", "sgd.step()"),
    ("train.py", "jit-trace-in-training-mode", "traced = torch.jit.trace(model"),
    ("train.py", "deprecated-api", "traced = torch.jit.trace(model"),
    ("train.py", "unsafe-load", "model.load_state_dict(torch.load(options.resume"),
    ("train.py", "state-dict-alias", "best_state = model.state_dict()"),
)


def places(name: str, line: str) -> set[int]:
    """The numbers of the lines of a file that begin with this text."""
    lines = (DEMO / "shapes" / name).read_text(encoding="utf-8").splitlines()
    return {number for number, text in enumerate(lines, 1) if text.strip().startswith(line)}


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python in `folder`, with the demo importable."""
    command = [sys.executable, "-B", *words]
    environment = os.environ | {"PYTHONPATH": str(DEMO)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=200)


def shown(findings: list[Finding] | tuple[Finding, ...]) -> list[tuple[str, str, int]]:
    return [(Path(one.path).name, one.name, one.span.line) for one in findings]


@pytest.fixture(scope="module")
def found() -> list[tuple[str, str, int]]:
    """What torchlint finds in the demo, with the demo's own configuration."""
    report = lint_paths([str(DEMO)], load([str(DEMO)]))
    assert not report.errors
    assert report.files == len(list(DEMO.rglob("*.py")))
    return shown(report.findings)


@pytest.mark.parametrize("planted", PLANTED, ids=lambda row: f"{row[1]}-{row[0]}")
def test_planted_faults_are_found(planted, found):
    name, rule, line = planted
    assert len(places(name, line)) == 1, f"{name} must have one such line"
    if rule in {one.meta.name for one in all_rules()}:
        hits = {number for file, other, number in found if (file, other) == (name, rule)}
        assert hits & places(name, line)


def test_nothing_else_is_found(found):
    expected = {(name, rule, number) for name, rule, line in PLANTED for number in places(name, line)}
    assert [row for row in found if row not in expected] == []


def test_the_demo_covers_every_layer():
    catalogue = Path(__file__).parent / "data" / "code_history.txt"
    codes = dict(reversed(row.split()) for row in catalogue.read_text().splitlines() if row.startswith("TL"))
    count = Counter(codes[rule][2] for _, rule, _ in PLANTED)
    assert all(count[str(number)] for number in range(1, len(LAYERS) + 1)), count
    assert len({rule for _, rule, _ in PLANTED}) >= 20


def test_the_demo_is_of_a_size_to_read():
    lines = sum(len(path.read_text().splitlines()) for path in DEMO.rglob("*.py"))
    assert 250 <= lines <= 400


def test_the_demo_imports_without_running(tmp_path):
    names = [f"shapes.{path.stem}" for path in sorted((DEMO / "shapes").glob("[a-z]*.py"))]
    done = python(tmp_path, "-c", f"import {', '.join(names)}")
    assert len(names) == 6
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.slow
def test_the_demo_trains_although_it_is_wrong(tmp_path):
    """What makes such faults expensive: nothing complains."""
    done = python(tmp_path, "-W", "error", "-m", "shapes.train", "--epochs", "2", "--count", "64")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert done.stdout.count("epoch ") == 2
    assert (tmp_path / "shapes.pt").exists()
