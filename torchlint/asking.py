"""`--interactive`: each fix is shown as a patch, and made if the answer is yes."""
from __future__ import annotations

import sys

import click

from torchlint.findings import Finding, Safety
from torchlint.report.common import visible

HELP = "y: make this fix · n: leave it · a: make it and all that follow · q: leave it and all that follow"
_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


class Asker:
    """Asks about one fix after the other, on standard error, so that the report stays apart."""

    def __init__(self) -> None:
        self.rest: bool | None = None  # the answer to all that is still to come

    def __call__(self, finding: Finding, patch: str) -> bool:
        """Whether to make the fix of a finding, which would do what `patch` says."""
        if self.rest is not None:
            return self.rest
        _show(finding, patch)
        while True:
            try:
                answer = click.prompt("Make this fix? [y,n,a,q,?]", default="?", show_default=False, err=True)
            except click.Abort:
                if _interrupted():
                    raise
                answer = "q"  # the input has come to its end
            match answer.strip().lower()[:1]:
                case "y":
                    return True
                case "n":
                    return False
                case "a" | "q" as word:
                    self.rest = word == "a"
                    return self.rest
            click.echo(HELP, err=True)


def _interrupted() -> bool:
    """Whether click gave up because of Ctrl-C, not because the input was at its end."""
    context = sys.exc_info()[1]
    while context is not None:
        if isinstance(context, KeyboardInterrupt):
            return True
        context = context.__context__
    return False


def _show(finding: Finding, patch: str) -> None:
    """The finding, what its fix does, and the patch."""
    place = f"{visible(finding.path)}:{finding.span.line}:{finding.span.column}"
    click.echo(f"\n{place}: {finding.code} {finding.name}: {visible(finding.message)}", err=True)
    if finding.fix is not None:
        doubt = " (unsafe: it changes what runs)" if finding.fix.safety is not Safety.SAFE else ""
        click.echo(f"{visible(finding.fix.title)}{doubt}", err=True)
    for line in patch.splitlines():
        if not line.startswith(("---", "+++")):
            click.secho(visible(line.expandtabs()), fg=_COLOURS.get(line[:1]), err=True)
