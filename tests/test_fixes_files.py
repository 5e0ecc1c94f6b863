"""`torchlint --fix` on files as they are found: encodings, newlines, marks, links, and a patch of the same."""
from __future__ import annotations

import os
import subprocess
import sys

import pytest

BAD = """import torch
from torch.autograd import Function


class Round(Function):
    # ä comment
    def forward(self, x):
        return x.round()

    def backward(self, grad):
        return grad


y = Round()(torch.ones(1))"""
GOOD = """import torch
from torch.autograd import Function


class Round(Function):
    # ä comment
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, grad):
        return grad


y = Round.apply(torch.ones(1))"""
COOKIE = "# -*- coding: latin-1 -*-\n"
FORMS = {
    "plain.py": lambda text: f"{text}\n".encode(),
    "no_newline.py": lambda text: text.encode(),
    "windows.py": lambda text: f"{text}\n".replace("\n", "\r\n").encode(),
    "old_mac.py": lambda text: f"{text}\n".replace("\n", "\r").encode(),
    "mark.py": lambda text: f"{text}\n".encode("utf-8-sig"),
    "mark_windows.py": lambda text: text.replace("\n", "\r\n").encode("utf-8-sig"),
    "latin.py": lambda text: f"{COOKIE}{text}\n".encode("latin-1"),
    "tabs.py": lambda text: f"{text}\n".replace("    ", "\t").encode(),
    "form feed.py": lambda text: f"{text}\n".replace("\n\n\n", "\n\f\n\n").encode(),
    "trailing.py": lambda text: f"{text}   \n\n\n".encode(),
}


def torchlint(folder, *args):
    command = [sys.executable, "-m", "torchlint", "--isolated", "--select", "TL301,TL302", *args, "."]
    return subprocess.run(command, cwd=folder, capture_output=True, timeout=120)


@pytest.fixture
def folder(tmp_path):
    for name, form in FORMS.items():
        (tmp_path / name).write_bytes(form(BAD))
    return tmp_path


def contents(folder):
    return {name: (folder / name).read_bytes() for name in FORMS}


def test_only_what_is_fixed_changes_in_every_form(folder):
    good = {name: form(GOOD) for name, form in FORMS.items()}
    os.chmod(folder / "plain.py", 0o755)
    done = torchlint(folder, "--fix", "--unsafe-fixes")
    assert contents(folder) == good, done.stdout.decode()
    assert (done.returncode, done.stderr) == (0, b"")
    assert os.stat(folder / "plain.py").st_mode & 0o777 == 0o755
    assert sorted(os.listdir(folder)) == sorted(FORMS)
    assert torchlint(folder, "--fix", "--unsafe-fixes").returncode == 0
    assert contents(folder) == good


def test_the_patch_does_what_fix_does(folder):
    before = contents(folder)
    done = torchlint(folder, "--diff", "--unsafe-fixes")
    assert contents(folder) == before
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    applied = subprocess.run(["git", "apply", "-"], cwd=folder, input=done.stdout, capture_output=True)
    assert applied.returncode == 0, applied.stderr
    assert contents(folder) == {name: form(GOOD) for name, form in FORMS.items()}
