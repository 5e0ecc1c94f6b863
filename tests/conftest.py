"""What all tests share: a cache where no other run finds it, and the default width of reports."""
from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from runtime_check.pool import Pool

FOLDER = tempfile.mkdtemp(prefix="torchlint-tests-")
os.environ["TORCHLINT_CACHE_DIR"] = FOLDER
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)
os.environ.pop("COLUMNS", None)


@pytest.fixture(autouse=True)
def _no_modules_on_demand() -> Iterator[None]:
    """What `confirm` puts into `sys.modules` of a child that ends stays no longer than a test here, either.

    Modules of this very project, whose names are computed on demand, would stand for the real ones.
    """
    yield
    loader = sys.modules.get("runtime_check.project_loader")
    if loader is not None:
        kinds = (loader.ModuleProxy, loader.PartlyMissing, loader.Overlay)
        for name in [name for name, module in sys.modules.items() if isinstance(module, kinds)]:
            del sys.modules[name]
        loader.FINDER.loader = None


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    """Two workers that run experiments of `confirm`, for the tests of one file."""
    from runtime_check.pool import Pool

    with Pool(2) as running:
        yield running
