"""What `import torchlint` offers: lint and fix text that is in memory."""
from __future__ import annotations

from collections.abc import Sequence

from torchlint.builtin import every_rule
from torchlint.config import Options
from torchlint.engine import check, lint_source
from torchlint.files import STDIN, Source
from torchlint.project import Project
from torchlint.rule import Rule
from torchlint.select import select

__all__ = ["fix_source", "lint_source"]


def fix_source(
    text: str,
    path: str = STDIN,
    options: Options | None = None,
    *,
    unsafe: bool = False,
    rules: Sequence[Rule] | None = None,
) -> str:
    """`text` with its safe fixes made, and with `unsafe` those too that change what runs.

    The arguments are those of `lint_source`. Text that cannot be parsed comes back as it is.
    """
    from torchlint.fixes.apply import fix_source as apply  # late: only fixes need libcst

    selection = select(options or Options(), every_rule() if rules is None else tuple(rules))
    project = Project()
    bare = text.removeprefix("\ufeff")
    mark = text[: len(text) - len(bare)]
    return mark + apply(Source(path, bare), lambda one: check(one, selection, project), unsafe=unsafe).text
