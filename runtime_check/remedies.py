"""What a reader can do where code was not reached, or nothing could be told: one step, by what the reason says.

Texts alone; nothing is run.
"""

from __future__ import annotations

import os
import re

from runtime_check.evidence import OWN_FAULT, Outcome, Verdict
from runtime_check.nearby import dotted

PACKAGE = re.compile(r"package `([\w.-]+)` is not installed|No module named '([\w.]+)'|requires '([\w.-]+)[^']*'"
                     r"|requires the (?:package )?`?([\w-]+)`? (?:package|library)")
NAME = re.compile(r"NameError: name '(\w+)' is not defined")
VERSION = re.compile(r"`([\w.]+)` (?:has no|binds no name) `(\w+)`")
FILE = re.compile(r"No such file or directory: '([^']+)'")
HINT = re.compile(r"HintError: (\S+\(\))")
COMPILED = re.compile(r"\b_C\b|_OpNamespace|torch\.ops\.")
ABSTRACT = re.compile(r"NotImplementedError:? *(\(line \d+ of|$)|abstract class|You must implement the forward")
COMPARED = re.compile(r"corrected|backward runs through this graph|so it is used|no check for|seems meant to"
                      r"|torch itself says nothing|whatever the input|is a mean over its batch cannot be seen")
#: Reasons that name what is to be looked at, and the step for each.
OPEN = (
    (re.compile(r"backward gives no gradient for"), "see whether anything trains it: if so, give its gradient"),
    (re.compile(r"its result carries no graph"),
     "mark backward with `once_differentiable`, or compute it of the saved tensors with a graph"),
    (re.compile(r"^with \S+\(\), "), "let that example give arguments of another size or kind"),
    (re.compile(r"may empty it in between"), "run what calls it: give confirm the script or the test that does"),
    (re.compile(r"of one object with inputs of one size"),
     "see whether what differs from call to call, the key of a cache say, is bounded: these calls are all alike"),
    (re.compile(r"changes no number|none of the values that the program stores"),
     "run it with values that the statement changes; if there are none, it is not needed"),
    (re.compile(r"can the line get some"), "see whether zeros can come there: if so, make the argument safe first"),
    (re.compile(r"no input that was tried makes the operand"),
     "see whether something keeps it small, as a clamp or a normalisation does: if so, the formula is right"),
    (re.compile(r"comes near the limit"), "see whether the limit is meant to be reached"),
)
NOISE = re.compile(r"two runs|two equal runs|spread of repeated|from one seed")


def next_step(outcome: Outcome, path: str, name: str, seconds: float, code: str = "") -> str:
    """The step for an outcome about `name` (`Net.forward`, "" for a script) of a file; "" where none is needed.

    `seconds` is the time that the run was given, `code` the rule whose claim was tested, if one was.
    """
    if outcome.verdict in (Verdict.CONFIRMED, Verdict.REFUTED):
        return ""
    return (by_surroundings(outcome.why, path, seconds) or (by_claim(outcome.why, code) if code else "")
            or by_example(path, name, code))


def by_surroundings(why: str, path: str, seconds: float) -> str:
    """The step where the machine, not the code, stood in the way; "" if it did not."""
    if COMPILED.search(why):
        return "build the compiled part of the package, and run torchlint where it can be imported"
    packages = [next(filter(None, found)).partition(".")[0] for found in PACKAGE.findall(why)]
    packages = [name for name in packages if name not in ("torch", *path.split(os.sep))]
    if packages:
        return f"install {packages[0]} beside torchlint"
    if ABSTRACT.search(why):
        return "leave it: it is abstract, and what derives from it is run for itself"
    if "--max-seconds" in why:
        return "raise --max-seconds, or leave it out"
    if re.search(r"no result within|time was over|took too long|time limit", why):
        return f"--timeout {3 * seconds:g}"
    if re.search(r"^interrupted|could be started|closed the pipe|the process that runs", why):
        return "run it again"
    if found := HINT.search(why):
        return f"mend {found[1]}: it is to make them"
    if "meta device" in why:
        return "run it with tensors that hold values: on the CPU"
    if why.startswith("the code replaces"):
        return "undo at the end of the call what it replaces, or leave it out"
    if re.search(r"signal \d+\)?$|segmentation fault|aborted by a native|without a result", why):
        return "run the function by itself, in a debugger: it ends the process that it runs in"
    if re.search(r"torchlint stopped this code|stopped when it tried", why):
        return "run it where that is not needed: with files that are there, without network or other programs"
    if file := FILE.search(why):
        return f"put {file[1]} where the code looks for it"
    if found := NAME.search(why):
        return f"define or import {found[1]}: this code cannot run anywhere"
    if (found := VERSION.search(why)) and not found[1].startswith("torch."):
        return f"install a {found[1].partition('.')[0]} that has {found[2]}"
    if why.startswith(OWN_FAULT):
        return "mend it, or run it with the torch that it was written for: it ends so whatever it is given"
    if re.search(r"CUDA|NVIDIA|[Tt]riton|torch\._C\._cuda", why):
        return "run it on a machine with a GPU, with --device cuda"
    return ""


def by_claim(why: str, code: str) -> str:
    """The step where the code ran and what was seen did not decide; "" if it did not run."""
    for said, step in OPEN:
        if said.search(why):
            return step
    if NOISE.search(why):
        return "seed what is random, or run it again on a machine with less to do"
    if COMPARED.search(why):
        return f"`torchlint rule {code}` says what to look for"
    return ""


def by_example(path: str, name: str, code: str = "") -> str:
    """The step where arguments are lacking: how to give some."""
    if not name:
        return "put the code into a function, and mark another with @runtime_check.example_for that makes its arguments"
    holder, _, method = name.rpartition(".")
    subject = holder if holder and method in ("__init__", "forward", "__call__", "backward") else name
    what = "returns the arguments of its apply, as a tuple," if code == "TL313" else "makes its arguments"
    return f'mark a function that {what} with @runtime_check.example_for("{dotted(path)}:{subject}")'
