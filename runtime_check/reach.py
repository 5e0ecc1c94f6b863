"""`torchlint confirm --reach`: how much of some code can be run with nothing from its author, and why not more."""

from __future__ import annotations

import ast
import collections
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace

from runtime_check.evidence import OWN_FAULT, Environment, Outcome, Verdict
from runtime_check.plan import Case, Lines
from runtime_check.remedies import next_step
from runtime_check.target import target_at
from torchlint.claims import Claim
from torchlint.config import Options
from torchlint.discover import discover
from torchlint.engine import roots
from torchlint.files import UnreadableFile, read_source

KINDS = {
    "modules": ("Module class", "Module classes", "ran forward", "only built"),
    "functions": ("autograd Function", "autograd Functions", "called", ""),
    "loops": ("training function or script", "training functions and scripts", "went on to a second backward",
              "came to the first only"),
    "findings": ("finding with a claim", "findings with a claim", "got a verdict", ""),
}
#: What a class says that calls such a kernel: a grid, a compiled extension, a registered operator.
KERNELS = re.compile(r"_kernel\w*\[|\[grid|triton|_C\.|_ext\b|torch\.ops\.|torch\.cuda\.|cupy|nvcc|_cuda\b")
MOST, NAMED = 12, 5  # reasons listed for each kind, and others that are named beside the example of each
NATIVE = re.compile(r"CUDA|cuda|[Tt]riton|kernel|_C\b|\bops\.|extension|nvcc|GPU|flash_attn|NVIDIA")

#: What keeps code from being run, by what an error says; the first that fits.
REASONS: tuple[tuple[str, str], ...] = (
    (rf"^{OWN_FAULT}", "an error of its own, whatever it is given"),
    (r"no result within|time limit|took too long|time was over", "time"),
    (r"\bmemory\b|too large", "memory"),
    (r"Triton|triton|CUDA|cuda|_C\b|NVIDIA|kernel", "a native kernel or a GPU"),
    (r"package `([\w.]+)` is not installed|No module named '([\w.]+)'|[Rr]equires '[\w-]+"
     r"|requires the [\w-]+ library",
     "a package that is not installed"),
    (r"stopped this code|stopped when it tried", "network, files or other programs"),
    (r"has no `\w+` in this environment|binds no name|cannot import", "another version of a package"),
    (r"NameError", "a name that is not defined"),
    (r"SystemExit|called exit", "code that ends itself: an option, a file or a GPU is missing"),
    (r"FileNotFound|No such file|does not exist", "files that are not there"),
    (r"not enough values|too many values|rank|dimension|[Dd]im\b|shape|size|must match|mat1|channels|unpack|broadcast"
     r"|divisible|einops|expected .*D|index .* out of|IndexError", "shapes and sizes"),
    (r"dtype|Float|Long|Double|type float|ByteTensor", "dtypes"),
    (r"NotImplementedError|abstract", "abstract classes"),
    (r"AttributeError|KeyError|object is not (callable|subscriptable|iterable)", "an object of a special kind"),
    (r"missing \d+ required|TypeError", "arguments"),
    (r"ValueError|AssertionError|RuntimeError", "values that have to fit together"),
    (r"no attempt|never executed|nothing", "no way to it found"),
)


@dataclass(frozen=True)
class Tried:
    """Something that was tried: where it is, and how far it got."""

    kind: str
    path: str
    name: str
    outcome: Outcome
    next_step: str = ""  # what a reader can do if it did not run

    @property
    def place(self) -> str:
        """File and name; the folder tells one `models.py` from another."""
        folder, file = os.path.split(self.path)
        return f"{os.path.join(os.path.basename(folder), file)}: {self.name or 'the script'}"

    @property
    def reason(self) -> str:
        """Why it did not run, in a few words."""
        why = self.outcome.why
        return next((words for pattern, words in REASONS if re.search(pattern, why)), "something else")


@dataclass
class Reach:
    """All that was tried."""

    tried: list[Tried] = field(default_factory=list)
    environment: Environment | None = None
    seconds: float = 0.0

    def of(self, kind: str) -> list[Tried]:
        """What was tried of one kind."""
        return [one for one in self.tried if one.kind == kind]


# -- what there is to try -----------------------------------------------------------------------


def top_classes(tree: ast.Module) -> Iterator[ast.ClassDef]:
    """Top-level classes, also those under `if` and `try`."""
    for node in tree.body:
        if isinstance(node, (ast.ClassDef, ast.If, ast.Try)):
            inner = [node] if isinstance(node, ast.ClassDef) else ast.walk(node)
            yield from (item for item in inner if isinstance(item, ast.ClassDef))


def modules(tree: ast.Module) -> Iterator[str]:
    """Names of classes that look like Modules with a forward of their own."""
    for node in top_classes(tree):
        bases = " ".join(ast.unparse(base) for base in node.bases)
        if re.search(r"Function|Dataset|Exception|Distribution|Optimizer|Strategy|Enum|Protocol|ABC\b", bases):
            continue
        if node.bases and any(isinstance(item, ast.FunctionDef) and item.name == "forward" for item in node.body):
            yield node.name


def functions(tree: ast.Module) -> Iterator[str]:
    """Names of autograd Functions."""
    for node in top_classes(tree):
        if any(re.search(r"(^|\.)(Function|InplaceFunction)$", ast.unparse(base)) for base in node.bases):
            yield node.name


def loops(tree: ast.Module) -> Iterator[str]:
    """Functions and methods with a loop in which `backward` is called; "" for such a loop at the top level."""
    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name) if trains(node):
                yield name
            case ast.ClassDef(name=name):
                methods = [item for item in node.body if isinstance(item, ast.FunctionDef)]
                yield from (f"{name}.{item.name}" for item in methods if trains(item))
            case ast.For() | ast.While() | ast.If() | ast.With() if trains(node):
                yield ""


def trains(node: ast.AST) -> bool:
    """Whether `backward` of something is called in a loop."""
    inner = [item for item in ast.walk(node) if isinstance(item, (ast.For, ast.While))]
    return any(
        isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "backward"
        for item in inner
        for call in ast.walk(item)
    )


FIND: dict[str, tuple[str, Callable[[ast.Module], Iterator[str]]]] = {
    "modules": ("reach-module", modules),
    "functions": ("reach-function", functions),
    "loops": ("reach-loop", loops),
}


def cases_in(paths: tuple[str, ...], options: Options, seconds: float,
             factories: tuple[tuple[str, str], ...] = ()) -> Iterator[tuple[str, Case]]:
    """A case for everything in the files that can be tried, with its kind; `factories` are those of the user."""
    folders = tuple(str(root) for root in roots(paths))
    for found in discover(paths, options.exclude, options.base, force=options.force_exclude).files:
        try:
            text = read_source(found.path, found.shown).text
            tree = ast.parse(text)
        except (UnreadableFile, SyntaxError, ValueError, RecursionError):
            continue
        for kind, (code, names) in FIND.items():
            for name in dict.fromkeys(names(tree)):
                path = os.path.abspath(found.path)
                yield kind, Case(0, path, code, name, Claim(), text, (Lines(1, 1),), roots=folders, seconds=seconds,
                                 factories=factories)


# -- the report ---------------------------------------------------------------------------------


def render(reach: Reach, form: str = "text") -> str:
    """The report as text, or as one JSON object."""
    if form == "json":
        return json.dumps(to_dict(reach), indent=2) + "\n"
    parts = [section(kind, reach.of(kind)) for kind in KINDS if reach.of(kind)]
    where = f"torch {reach.environment.torch}, {reach.environment.device}; " if reach.environment else ""
    return "\n".join(parts) + f"\n{where}{len(reach.tried)} tried in {reach.seconds:.0f} s\n"


def counts(tried: list[Tried]) -> tuple[int, int]:
    """How many ran, and how many were only built."""
    verdicts = [one.outcome.verdict for one in tried]
    if tried and tried[0].kind == "findings":
        return verdicts.count(Verdict.CONFIRMED) + verdicts.count(Verdict.REFUTED), 0
    return verdicts.count(Verdict.CONFIRMED), verdicts.count(Verdict.REFUTED)


def left_out(tried: list[Tried]) -> list[Tried]:
    """What did not run."""
    good = {Verdict.CONFIRMED, Verdict.REFUTED} if tried[0].kind == "findings" else {Verdict.CONFIRMED}
    return [one for one in tried if one.outcome.verdict not in good]


def native(tried: list[Tried]) -> int:
    """How many of what did not run need kernels that are no part of torch on the CPU."""
    return sum(bool(NATIVE.search(one.outcome.why) or KERNELS.search(class_text(one))) for one in left_out(tried))


def faulty(tried: list[Tried]) -> int:
    """How many end in an error of their own."""
    return sum(one.outcome.why.startswith(OWN_FAULT) for one in left_out(tried)) if tried else 0


def class_text(one: Tried) -> str:
    """The text of a class that was tried, or nothing."""
    try:
        tree = ast.parse(read_source(one.path, one.path).text)
    except (UnreadableFile, SyntaxError, ValueError, RecursionError):
        return ""
    return next((ast.unparse(node) for node in top_classes(tree) if node.name == one.name), "")


def section(kind: str, tried: list[Tried]) -> str:
    """One kind: the share, and the reasons of the rest, counted, with an example of each."""
    one_noun, nouns, good, half = KINDS[kind]
    noun = one_noun if len(tried) == 1 else nouns
    ran, built = counts(tried)
    lines = [f"{len(tried)} {noun}: {ran} {good} ({ran / len(tried):.0%})" + (f", {built} {half}" if built else "")]
    if kind == "functions":
        rest = len(tried) - native(tried)
        lines.append(f"  without those that need native kernels: {ran} of {rest} ({ran / max(rest, 1):.0%})")
    if own := faulty(tried):
        rest = len(tried) - own
        lines.append(f"  without those that end in an error of their own: {ran} of {rest} ({ran / max(rest, 1):.0%})")
    reasons = collections.Counter(one.reason for one in left_out(tried))
    for reason, count in reasons.most_common(MOST):
        first = next(one for one in left_out(tried) if one.reason == reason)
        lines.append(f"  {count:4} {reason:40} {first.place}: {first.outcome.why[:110]}")
        lines += [f"       next: {first.next_step}"] if first.next_step else []
        lines += also([one for one in left_out(tried) if one.reason == reason and one is not first])
    return "\n".join(lines) + "\n"


def also(rest: list[Tried]) -> list[str]:
    """A line that names the others that did not run for the same reason."""
    if not rest:
        return []
    more = f" and {len(rest) - NAMED} more" if len(rest) > NAMED else ""
    return [f"       also {', '.join(one.place for one in rest[:NAMED])}{more}"]


def to_dict(reach: Reach) -> dict[str, object]:
    """The report as plain data."""
    return {
        "version": 1,
        "environment": None if reach.environment is None else asdict(reach.environment),
        "summary": {
            kind: {"tried": len(reach.of(kind)), "ran": counts(reach.of(kind))[0], "built": counts(reach.of(kind))[1],
                   **({"native": native(reach.of(kind))} if kind == "functions" and reach.of(kind) else {}),
                   **({"own_error": faulty(reach.of(kind))} if faulty(reach.of(kind)) else {})}
            for kind in KINDS
        },
        "tried": [
            {"kind": one.kind, "path": one.path, "name": one.name, "reason": one.reason, **one.outcome.as_row(),
             "next_step": one.next_step or None}
            for one in reach.tried
        ],
        "seconds": round(reach.seconds, 1),
    }


def tried(kind: str, case: Case, outcome: Outcome) -> Tried:
    """What came of a case, with the step that would help."""
    finding = kind == "findings"
    name = target_at(case.text, case.flagged[0].first).qualname if finding else case.name
    built = not finding and outcome.verdict is Verdict.REFUTED  # which stands for: it did not run
    seen = replace(outcome, verdict=Verdict.CANNOT_TELL) if built else outcome
    step = next_step(seen, case.path, name, case.seconds, case.code if finding else "")
    return Tried(kind, case.path, case.name, outcome, step)


def measure(
    cases: list[tuple[str, Case]],
    jobs: int,
    device: str,
    *,
    most: float | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Reach:
    """Tries everything in one pool."""
    from runtime_check.pool import Pool

    started = time.perf_counter()
    reach = Reach()
    if cases:
        until = None if most is None else time.monotonic() + most
        with Pool(min(jobs, len(cases)), device, until) as pool:
            reach.environment = pool.environment
            placed = [replace(case, key=key) for key, (_, case) in enumerate(cases)]
            for case, outcome in pool.run(placed):
                reach.tried.append(tried(cases[case.key][0], case, outcome))
                if progress is not None:
                    progress(len(reach.tried), len(cases))
    reach.tried.sort(key=lambda one: (list(KINDS).index(one.kind), one.path, one.name))
    reach.seconds = time.perf_counter() - started
    return reach
