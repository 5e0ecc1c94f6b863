"""What all tests share: a cache where no other run finds it, and the default width of reports."""
from __future__ import annotations

import atexit
import os
import shutil
import tempfile

FOLDER = tempfile.mkdtemp(prefix="torchlint-tests-")
os.environ["TORCHLINT_CACHE_DIR"] = FOLDER
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)
os.environ.pop("COLUMNS", None)
