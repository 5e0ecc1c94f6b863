"""A report with awkward content, shared by the tests of the formats."""
from __future__ import annotations

from types import MappingProxyType

from torchlint.claims import GraphGrows
from torchlint.files import Source
from torchlint.findings import Confidence, Edit, Finding, Fix, Safety, Severity, Span
from torchlint.results import Problem, Report
from torchlint.rule import Example, Meta, Rule

DOC = """A loss summed over a loop with its graph.

Every summand keeps the graph of its step alive, so memory grows
with the number of steps.

Add `loss.item()` or `loss.detach()`.
"""
TEXT = "total = 0\nfor 数 in steps:\n\ttotal += 損失  # 损失\nmodel(\n    x,\n)\n"


def rule(code: str = "TL201", name: str = "graph-retained-in-loop", **values: object) -> Rule:
    """A rule that never reports, with everything that reports show."""
    return Rule(
        meta=Meta(code, name, Severity.ERROR, fix=Safety.SAFE, aliases=("TOR999",)),
        check=lambda model: iter(()),
        doc=DOC,
        layer="graph",
        module="torchlint.rules.graph.graph_retained_in_loop",
        claim=GraphGrows(),
        examples=(Example("import torch\nx = 1  #!", "import torch\nx = 2"),),
        clean=("import torch\n",),
        **values,
    )


SAFE = Fix(Safety.SAFE, "add `.detach()`", (Edit(Span(3, 13, 3, 13), ".detach()"),))
UNSAFE = Fix(Safety.UNSAFE, "call `forward`", (Edit(Span(4, 1, 4, 6), "y"), Edit(Span(6, 1, 6, 2), ";")))


def finding(**values: object) -> Finding:
    """A finding on the third line of TEXT, with some values replaced."""
    usual = {
        "path": "src/train loop.py",
        "span": Span(3, 2, 3, 13),
        "code": "TL201",
        "name": "graph-retained-in-loop",
        "severity": Severity.ERROR,
        "confidence": Confidence.SURE,
        "message": "`total` keeps the graph of every `損失`: 100% of it, always",
        "fix": SAFE,
        "fingerprint": "f1",
    }
    return Finding(**(usual | values))


ONE = finding()
TWO = finding(
    span=Span(4, 1, 6, 2),
    code="TL402",
    name="direct-forward-call",
    severity=Severity.ADVICE,
    confidence=Confidence.GUESS,
    message="first line\nsecond: line, with a comma",
    fix=UNSAFE,
    fingerprint="f2",
)
THREE = finding(
    path="a\udcff\x1b[31m.py",
    span=Span(1, 1, 1, 2),
    severity=Severity.WARNING,
    message="control \x00 and \x1b[2J",
    fix=None,
    fingerprint="f1",
    cell=4,
)


def report(*findings: Finding, **values: object) -> Report:
    """A report over two rules and the file `TEXT`."""
    usual = {
        "files": 7,
        "sources": MappingProxyType({ONE.path: Source(ONE.path, TEXT)}),
        "rules": (rule(), rule("TL402", "direct-forward-call")),
        "seconds": 1.25,
    }
    return Report(findings=findings, **(usual | values))


FULL = report(ONE, TWO, THREE, errors=(Problem("vanished", "gone.py"), Problem("no such option")))
EMPTY = report()
