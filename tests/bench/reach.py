"""How far real code can be run with nothing from its author.

    python tests/bench/reach.py FOLDER_OR_FILE... [--sample N] [--seed S] [--kind modules|functions|loops]
                                [--path EXTRA_SYS_PATH]... [--list] [--only NAME]

Samples Module classes, autograd Functions, or training functions and scripts below the given places,
tries each in a process of its own with a time limit, and prints how many were loaded, constructed, run
forward and run backward, and why the others were not.
"""
from __future__ import annotations

import argparse
import ast
import collections
import contextlib
import json
import os
import random
import re
import resource
import select
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[2]))
SECONDS = 12
SKIP = re.compile(r"/(tests?|docs?|legacy|\.git)/|/test_|conftest|setup\.py$")


def python_files(places: list[str]) -> Iterator[Path]:
    """Python files below the places, in a stable order."""
    for place in places:
        root = Path(place)
        found = sorted(root.rglob("*.py")) if root.is_dir() else [root]
        yield from (item for item in found if not SKIP.search(f"/{item.relative_to(root)}"))


def classes(tree: ast.Module) -> Iterator[ast.ClassDef]:
    """Top-level classes, also those under `if` and `try`."""
    for node in tree.body:
        if isinstance(node, (ast.ClassDef, ast.If, ast.Try)):
            inner = [node] if isinstance(node, ast.ClassDef) else ast.walk(node)
            yield from (item for item in inner if isinstance(item, ast.ClassDef))


def modules_in(tree: ast.Module) -> Iterator[str]:
    """Names of classes that look like Modules with a forward of their own."""
    for node in classes(tree):
        bases = " ".join(ast.unparse(base) for base in node.bases)
        if re.search(r"Function|Dataset|Exception|Distribution|Optimizer|Strategy|Enum", bases):
            continue
        methods = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
        if node.bases and "forward" in methods:
            yield node.name


def functions_in(tree: ast.Module) -> Iterator[str]:
    """Names of autograd Functions."""
    for node in classes(tree):
        if any(re.search(r"(^|\.)(Function|InplaceFunction)$", ast.unparse(base)) for base in node.bases):
            yield node.name


def loops_in(tree: ast.Module) -> Iterator[str]:
    """Functions and methods with a loop in which `backward` is called; "" for such a loop at the top level."""

    def trains(node: ast.AST) -> bool:
        loops = [item for item in ast.walk(node) if isinstance(item, (ast.For, ast.While))]
        return any(isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "backward"
                   for loop in loops for call in ast.walk(loop))

    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name) if trains(node):
                yield name
            case ast.ClassDef(name=name):
                methods = [item for item in node.body if isinstance(item, ast.FunctionDef)]
                yield from (f"{name}.{item.name}" for item in methods if trains(item))
            case ast.For() | ast.While() | ast.If() | ast.With() if trains(node):
                yield ""


FIND: dict[str, Callable[[ast.Module], Iterator[str]]] = {
    "modules": modules_in, "functions": functions_in, "loops": loops_in,
}


def collect(places: list[str], kind: str) -> list[tuple[str, str]]:
    """Pairs of path and qualified name."""
    found = []
    for path in python_files(places):
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError, ValueError):
            continue
        found += [(str(path), name) for name in dict.fromkeys(FIND[kind](tree))]
    return found


def try_module(path: str, name: str) -> dict[str, Any]:
    """One Module class: how far it got."""
    from runtime_check.drive import build_module
    from runtime_check.extract import Namespace

    space = Namespace(Path(path).read_text(encoding="utf-8"), path)
    space.resolve(name)
    result: dict[str, Any] = {"load": True}
    last: BaseException | None = None
    for count, built in enumerate(build_module(space, name)):
        result["construct"] = True
        result.setdefault("label", built.label)
        if built.call is None or count > 6:
            result.setdefault("error", built.why)
            break
        try:
            value = built.call()
            result.update(forward=True, label=built.label)
            backward(value, built.module)
            result.update(backward=True)
            return result
        except Exception as error:
            last = error
    if last is not None:
        result["error"] = f"{type(last).__name__}: {last}"
    return result


def backward(value: Any, module: Any) -> None:
    """Runs backward from every differentiable tensor in a value. RuntimeError if there is none."""
    import torch

    found = [item for item in tensors(value) if item.requires_grad]
    if not found:
        trainable = any(item.requires_grad for item in module.parameters())
        if not trainable and any(True for _ in tensors(value)):
            return  # nothing to learn: running forward is all there is
        raise RuntimeError("no differentiable output")
    sum(item.abs().sum() if item.is_complex() else item.float().sum() for item in found).backward()
    assert isinstance(found[0], torch.Tensor)


def tensors(value: Any, depth: int = 4) -> Iterator[Any]:
    """Tensors in nested containers and plain objects."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif depth and isinstance(value, dict):
        for item in value.values():
            yield from tensors(item, depth - 1)
    elif depth and isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(item, depth - 1)
    elif depth and hasattr(value, "__dict__") and not isinstance(value, (type, torch.nn.Module)):
        yield from tensors(vars(value), depth - 1)


def try_function(path: str, name: str) -> dict[str, Any]:
    """One autograd Function: whether it could be called and gone back through."""
    from runtime_check.drive import build_function_class
    from runtime_check.extract import Namespace

    space = Namespace(Path(path).read_text(encoding="utf-8"), path)
    space.resolve(name)
    result: dict[str, Any] = {"load": True, "construct": True}
    last: BaseException | None = None
    tried = build_function_class(space, name)
    for _ in range(8):
        try:
            example = next(tried)
        except StopIteration:
            break
        except Exception as error:
            last = last or error
            break
        try:
            value = example.call()
            result.update(forward=True, label=example.label)
            found = [item for item in tensors(value) if item.requires_grad]
            sum(item.sum() for item in found).backward()
            result.update(backward=True)
            return result
        except Exception as error:
            last = error
    if last is not None:
        result["error"] = f"{type(last).__name__}: {last}"
    return result


def try_loop(path: str, name: str) -> dict[str, Any]:
    """One training function or script: whether its backward call is reached again and again."""
    import torch

    from runtime_check.drive import drives
    from runtime_check.extract import Namespace, target_at

    text = Path(path).read_text(encoding="utf-8")
    space = Namespace(text, path)
    line = line_of_backward(ast.parse(text), name)
    target = target_at(text, line)
    result: dict[str, Any] = {"load": True, "construct": True}
    seen, watching = 0, False
    real = torch.Tensor.backward

    class Enough(BaseException):
        pass

    def counting(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal seen
        seen += watching and sys._getframe(1).f_code.co_filename == path
        if watching and seen >= 4:
            raise Enough
        return real(self, *args, **kwargs)

    def too_long(*details: object) -> None:
        raise TimeoutError("the run took too long")

    signal.signal(signal.SIGALRM, too_long)
    torch.Tensor.backward = counting
    for count, drive in enumerate(drives(space, target)):
        before = seen
        try:
            watching = True
            signal.setitimer(signal.ITIMER_REAL, 2.5)
            drive.run()
        except Enough:
            pass
        except Exception as error:
            result["error"] = f"{drive.label}: {type(error).__name__}: {error}"
        finally:
            watching = False
            signal.setitimer(signal.ITIMER_REAL, 0)
        if seen > before:
            result.update(forward=True, label=f"{drive.kind}: {drive.label}")
        if seen >= 4 or (seen > 1 and count > 3):
            result.update(backward=True)
            return result
        if count > 12:
            break
    if seen > 1:
        result.update(backward=True)
    return result


def line_of_backward(tree: ast.Module, name: str) -> int:
    """A line with `.backward()` in the function, or at the top level."""
    scope: ast.AST = tree
    for part in name.split(".") if name else []:
        scope = next(item for item in ast.iter_child_nodes(scope) if getattr(item, "name", "") == part)
    skip = {id(inner) for item in tree.body if not name and isinstance(item, (ast.FunctionDef, ast.ClassDef))
            for inner in ast.walk(item)}
    return next(item.lineno for item in ast.walk(scope)
                if isinstance(item, ast.Attribute) and item.attr == "backward" and id(item) not in skip)


TRY = {"modules": try_module, "functions": try_function, "loops": try_loop}


def in_child(kind: str, path: str, name: str) -> dict[str, Any]:
    """Runs one trial in a forked process with a time and memory limit."""
    read, write = os.pipe()
    started = time.perf_counter()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        os.close(read)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0), os.dup2(null, 1), os.dup2(null, 2)
        resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
        try:
            result = TRY[kind](path, name)
        except BaseException as error:
            result = {"error": f"{type(error).__name__}: {error}"}
        os.write(write, json.dumps(result, default=str).encode()[:60_000])
        os._exit(0)
    os.close(write)
    ready, _, _ = select.select([read], [], [], SECONDS)
    data = b""
    while ready:
        part = os.read(read, 65536)
        if not part:
            break
        data += part
    os.close(read)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    result = json.loads(data) if data else {"error": "time limit" if not ready else "crashed"}
    result["seconds"] = time.perf_counter() - started
    return dict(result)


def main() -> None:
    """Runs the measurement and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("places", nargs="+")
    parser.add_argument("--sample", type=int, default=20, help="how many below each place")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=sorted(TRY), default="modules")
    parser.add_argument("--path", action="append", default=[])
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    sys.path.extend(options.path)
    import torch

    torch.set_num_threads(1)
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)  # loads what the first optimizer loads
    draw = random.Random(options.seed)
    chosen = []
    for place in options.places:
        found = [item for item in collect([place], options.kind) if options.only in ":".join(item)]
        chosen += draw.sample(found, min(options.sample, len(found)))
    rows = []
    for path, name in chosen:
        row = in_child(options.kind, path, name)
        rows.append(row)
        if options.list or not row.get("backward"):
            state = next((item for item in ("backward", "forward", "construct", "load") if row.get(item)), "nothing")
            why = str(row.get("error", "") or row.get("label"))[:230]
            print(f"{state:9} {row['seconds']:5.1f}s {path}:{name}  {why}", flush=True)
    report(rows)


def report(rows: list[dict[str, Any]]) -> None:
    """The rates and times."""
    count = len(rows) or 1
    print(f"{count} tried")
    for stage in ("load", "construct", "forward", "backward"):
        good = sum(bool(row.get(stage)) for row in rows)
        print(f"  {stage:10} {good:4}  {100 * good / count:.0f} %")
    seconds = sorted(row["seconds"] for row in rows)
    print(f"  seconds: median {statistics.median(seconds):.2f}, p95 {seconds[int(0.95 * (count - 1))]:.2f}")
    kinds = collections.Counter(str(row.get("error", "")).partition(":")[0] for row in rows if not row.get("backward"))
    print("  errors:", dict(kinds.most_common(8)))


if __name__ == "__main__":
    main()
