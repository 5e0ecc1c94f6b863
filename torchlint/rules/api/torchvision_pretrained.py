"""Pretrained weights asked for by a boolean.

Since torchvision 0.13 there can be several sets of weights for one model, each with its own preprocessing, so a
boolean no longer says which one is meant. `pretrained=` and `pretrained_backbone=` warn, and stand for the first
set that was ever published.

Name the weights: `weights="IMAGENET1K_V1"` is what `pretrained=True` loads; `weights="DEFAULT"` is the best set.

No claim: torchvision need not be installed where the check runs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchlint.findings import Safety, Severity
from torchlint.fixes import edits
from torchlint.fixes.layout import layout
from torchlint.fixes.precedence import OR
from torchlint.model import FileModel
from torchlint.rule import Example, Hit, Meta, Repair

META = Meta(
    "TL909", "torchvision-pretrained", Severity.WARNING, fix=Safety.SAFE, aliases=("TOR201",),
    triggers=("torchvision",))
CLAIM = None
NEW = {"pretrained": "weights", "pretrained_backbone": "weights_backbone"}
IMAGENET = "IMAGENET1K_V1"
WEIGHTS = {  # what pretrained=True loads, by package; "" where it differs from model to model
    "torchvision.models": IMAGENET, "torchvision.models.detection": "COCO_V1",
    "torchvision.models.segmentation": "COCO_WITH_VOC_LABELS_V1", "torchvision.models.video": "KINETICS400_V1",
    "torchvision.models.quantization": "", "torchvision.models.optical_flow": "",
}

EXAMPLES = [
    Example(
        bad="""
        from torchvision import models

        net = models.resnet18(pretrained=True)  #!
        bare = models.vgg16(pretrained=False)  #!
        """,
        good="""
        from torchvision import models

        net = models.resnet18(weights="IMAGENET1K_V1")
        bare = models.vgg16(weights=None)
        """,
    ),
    Example(
        bad="""
        import torchvision


        def backbone(known):
            return torchvision.models.resnet50(pretrained=known)  #!


        finder = torchvision.models.detection.fasterrcnn_resnet50_fpn(pretrained=True, pretrained_backbone=False)  #! #!
        """,
        good="""
        import torchvision


        def backbone(known):
            return torchvision.models.resnet50(weights="IMAGENET1K_V1" if known else None)


        finder = torchvision.models.detection.fasterrcnn_resnet50_fpn(weights="COCO_V1", weights_backbone=None)
        """,
    ),
    Example(
        bad="""
        from torchvision import models


        def build(arch):
            if arch == "resnet18":
                return models.resnet18(True)  #!
            return models.__dict__[arch](pretrained=True)  #!
        """,
        good="""
        from torchvision import models


        def build(arch):
            if arch == "resnet18":
                return models.resnet18(weights="IMAGENET1K_V1")
            return models.__dict__[arch](weights="IMAGENET1K_V1")
        """,
        fixed=False,
    ),
]

CLEAN = [
    """
    import timm
    from torchvision import models


    def resnet18(pretrained=False):
        return models.resnet18(weights="DEFAULT" if pretrained else None)


    timm.create_model("resnet18", pretrained=True)
    resnet18(pretrained=True)
    models.resnet18(progress=True)
    """,
]


def check(model: FileModel) -> Iterator[Hit]:
    """Calls of torchvision's model builders with one of the old arguments."""
    for call in model.nodes(ast.Call):
        if not call.args and not call.keywords:
            continue
        name = builder(model, call.func)
        if not name.startswith("torchvision.models.") or name.rpartition(".")[2][:1].isupper():
            continue
        old: list[ast.keyword | ast.expr] = [k for k in call.keywords if k.arg in NEW]
        old += [arg for arg in call.args[:1] if isinstance(arg, ast.Constant) and isinstance(arg.value, bool)]
        for argument in old:
            label = argument.arg if isinstance(argument, ast.keyword) else "pretrained"
            yield Hit(
                argument, f"`{label}` is deprecated; name the weights with `{NEW[label or '']}=`",
                named(model, name, label or "", argument, alone=len(call.args) == 1))


def builder(model: FileModel, func: ast.expr) -> str:
    """The dotted name of what is called; `models.?` where it is looked up by a name that cannot be seen."""
    match func:
        case ast.Name() | ast.Attribute():
            return model.name_of(func)
        case ast.Call(func=ast.Name(id="getattr"), args=[holder, *_]):
            return model.name_of(holder) + ".?"
        case ast.Subscript(value=ast.Attribute(value=holder, attr="__dict__")):
            return model.name_of(holder) + ".?"
    return ""


def named(
    model: FileModel, name: str, label: str, argument: ast.keyword | ast.expr, *, alone: bool
) -> Repair | None:
    """The argument under its new name, with weights in place of the boolean."""
    package, _, last = name.rpartition(".")
    known = IMAGENET if label == "pretrained_backbone" and "vgg" not in last else WEIGHTS.get(package, "")
    known = "IMAGENET1K_FEATURES" if label == "pretrained_backbone" and "vgg" in last else known
    mark = layout(model.source).quote
    weights = f"{mark}{known}{mark}"
    value = argument.value if isinstance(argument, ast.keyword) else argument
    if not isinstance(argument, ast.keyword) and not alone:
        return None
    if isinstance(value, ast.Constant) and isinstance(value.value, bool):
        if value.value and (not known or last == "?"):
            return None
        text, safety = (weights if value.value else "None"), Safety.SAFE
    elif known and last != "?" and isinstance(argument, ast.keyword):
        text, safety = f"{weights} if {edits.operand(model, value, OR)} else None", Safety.UNSAFE
    else:
        return None
    return edits.repair("Name the weights", edits.replace(model, argument, f"{NEW[label]}={text}"), safety=safety)
