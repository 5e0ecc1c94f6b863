"""What all tests share: results of earlier runs are kept where no other run finds them."""
from __future__ import annotations

import atexit
import os
import shutil
import tempfile

FOLDER = tempfile.mkdtemp(prefix="torchlint-tests-")
os.environ["TORCHLINT_CACHE_DIR"] = FOLDER
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)
