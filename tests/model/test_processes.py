"""Which conditions differ between the processes of one job."""
from __future__ import annotations

import ast

import ask
import pytest

from torchlint.model.processes import rank_test

HEAD = "import os\nimport torch.distributed as dist\n"


@pytest.mark.parametrize(("test", "expected"), [
    ("dist.get_rank() == 0", ("rank", True)),
    ("not dist.get_rank()", ("rank", True)),
    ("dist.get_rank()", ("rank", False)),
    ("int(os.environ['LOCAL_RANK']) != 0", ("rank", False)),
    ("os.environ.get('RANK', '0') == '0'", ("rank", True)),
    ("int(os.getenv('SLURM_PROCID')) > 0", ("rank", False)),
    ("is_main_process()", ("main", True)),
    ("int(os.environ['WORLD_SIZE']) > 1", None),
    ("os.environ.get('DEBUG')", None),
    ("int(step) == 0", None),
])
def test_a_condition_on_the_rank(test: str, expected: tuple[str, bool] | None) -> None:
    model = ask.model_of(f"{HEAD}if {test}:\n    pass\n")
    (branch,) = model.nodes(ast.If)
    assert isinstance(branch, ast.If)
    assert rank_test(model, branch.test) == expected
