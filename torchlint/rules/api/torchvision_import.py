"""A package of torchvision imported under its own name by `import ... as`.

`import torchvision.models as models` says the same name twice, and says it in a form that reads as if the package
were renamed. Torchvision's own documentation writes the `from` form.

Write `from torchvision import models`. Under another name, `import ... as` is right.

No claim: both forms do the same; this is about reading.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.findings import Safety, Severity
from torchlint.fixes import edits
from torchlint.model import FileModel
from torchlint.rule import Example, Hit, Meta

META = Meta(
    "TL911", "torchvision-import", Severity.ADVICE, fix=Safety.SAFE, aliases=("TOR203",), triggers=("torchvision",))
CLAIM = None
PACKAGES = ("datasets", "models", "transforms", "utils", "ops", "io")

EXAMPLES = [
    Example(
        bad="""
        import torchvision.models as models  #!
        import torchvision.transforms as transforms  #!

        print(models, transforms)
        """,
        good="""
        from torchvision import models
        from torchvision import transforms

        print(models, transforms)
        """,
    ),
]

CLEAN = [
    """
    import torchvision
    import torchvision.models
    import torchvision.transforms as T
    import torchvision.transforms.functional as F
    from torchvision import datasets
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Imports of a package of torchvision as itself."""
    for node in model.nodes(ast.Import):
        for alias in node.names:
            last = alias.name.removeprefix("torchvision.")
            if last != alias.name and last in PACKAGES and alias.asname == last:
                fix = None
                if len(node.names) == 1:
                    fix = edits.repair(
                        "Import it from torchvision", edits.replace(model, node, f"from torchvision import {last}"))
                yield Hit(node, f"a long way to say it; write `from torchvision import {last}`", fix)
