"""The command line: arguments in, text and an exit status out. What is done is in `torchlint.commands`.

Exit status: 0 nothing found (or all fixed), 1 findings, 2 the job could not be done, 130 it was interrupted.
"""
from __future__ import annotations

import functools
import math
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

from torchlint import __version__, cache
from torchlint.asking import Asker
from torchlint.builtin import every_rule
from torchlint.commands import check, show
from torchlint.config import ConfigError, did_you_mean
from torchlint.docs import build
from torchlint.new import NewRuleError, create
from torchlint.notebooks import ENDING
from torchlint.output import Progress, columns, fail, put, say
from torchlint.report import FORMATS, render, wants_colour
from torchlint.rule import LAYERS, Rule
from torchlint.select import find_rules

HELP = {"help_option_names": ["-h", "--help"]}
VERBOSE = "Show where a fault of torchlint itself comes from."
INTERRUPTED = 130  # as a shell says it of what Ctrl-C has ended
WIDTHS = 100, 120  # of text that goes to no terminal, and the most on one
Decorated = Callable[..., Any]
RESERVED = {"lsp": "the language server"}  # so that a path never changes its meaning


class Front(click.Command):
    """`torchlint PATHS`, or the command that the first argument names."""

    commands: dict[str, click.Command]

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """The context of the command that the first argument names, else our own."""
        if args and args[0] in RESERVED:
            raise click.UsageError(
                f"{RESERVED[args[0]]} is not part of this version (a path of that name is ./{args[0]})"
            )
        if args and args[0] in self.commands:
            command = self.commands[args[0]]
            return command.make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)
        if args and not args[0].startswith("-") and not os.path.lexists(args[0]):
            near = did_you_mean(args[0], self.commands)
            if near:
                raise click.UsageError(f"{args[0]}: no such file, directory or command{near}")
        return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that the context was made for."""
        return super().invoke(ctx) if ctx.command is self else ctx.command.invoke(ctx)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands below the options."""
        rows = [(name, command.get_short_help_str(70)) for name, command in sorted(self.commands.items())]
        with formatter.section("Commands (for a path of such a name write ./NAME)"):
            formatter.write_dl(rows)

    def main(
        self, args: Sequence[str] | None = None, prog_name: str | None = None, *_: Any, **extra: Any
    ) -> NoReturn:
        """Run and exit; every failure is one line on standard error."""
        args = list(sys.argv[1:] if args is None else args)
        try:
            status = super().main(args, prog_name or "torchlint", **{**extra, "standalone_mode": False})
        except click.ClickException as error:
            status = fail(error.format_message())
        except ConfigError as error:
            status = fail(str(error))
        except click.Abort:
            fail("interrupted")
            status = INTERRUPTED
        except Exception as error:
            if {"-v", "--verbose"} & set(args):
                traceback.print_exc()
            said = " ".join(str(error).split())
            status = fail(f"this is a fault of torchlint, please report it: {type(error).__name__}: {said}")
        sys.exit(status or 0)


class Seconds(click.FloatRange):
    """A time that ends."""

    def __init__(self) -> None:
        super().__init__(0, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number. Fails for what is no time: `nan`, `inf`."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is no number of seconds.", param, ctx)
        return number


def _words(ctx: click.Context, param: click.Parameter, value: Sequence[str]) -> tuple[str, ...]:
    """Values that may be repeated and may hold commas, as one tuple."""
    return tuple(word.strip() for item in value for word in item.split(",") if word.strip())


def _list(name: str, help: str) -> Callable[[Decorated], Decorated]:
    return click.option(name, multiple=True, callback=_words, metavar="LIST", help=help)


def choosing(command: Decorated) -> Decorated:
    """The options that say which rules look at which files; they arrive as one argument, `choices`."""

    @functools.wraps(command)
    def wrapped(*obj: Any, **given: Any) -> Any:
        choices = check.Choices(
            select=given.pop("select") or None,
            extend_select=given.pop("extend_select"),
            ignore=given.pop("ignore"),
            exclude=given.pop("exclude"),
            force_exclude=given.pop("force_exclude"),
            preview=given.pop("preview") or None,
            isolated=given.pop("isolated"),
            jobs=given.pop("jobs"),
            cache=not given.pop("no_cache"),
        )
        return command(*obj, choices=choices, **given)

    for option in (
        click.option("-j", "--jobs", type=click.IntRange(1), metavar="N", help="Processes [all processors]."),
        click.option("--no-cache", is_flag=True, help="Use no results of earlier runs."),
        click.option("--isolated", is_flag=True, help="Read no pyproject.toml."),
        click.option("--force-exclude", is_flag=True, help="Pass over excluded files even if they are named."),
        _list("--exclude", "Pass over paths that match these gitignore patterns."),
        click.option("--preview", is_flag=True, help="Preview rules as well."),
        _list("--ignore", "Not these rules."),
        _list("--extend-select", "These rules as well."),
        _list("--select", "Only these rules: codes, prefixes, names or ALL."),
    ):
        option(wrapped)
    return wrapped


@click.command("torchlint", cls=Front, context_settings=HELP)
@click.argument("paths", nargs=-1, metavar="PATHS...")
@choosing
@click.option("--fix", is_flag=True, help="Make the safe fixes.")
@click.option("--unsafe-fixes", is_flag=True, help="With --fix or --diff: those that change what runs, too.")
@click.option("--diff", is_flag=True, help="Print what --fix would change as a patch; change nothing.")
@click.option("--interactive", is_flag=True, help="With --fix or --diff: show each fix and ask.")
@click.option("--verify", is_flag=True, help="With --fix or --diff: run the code before and after. Needs torch.")
@click.option("--output-format", "form", type=click.Choice(FORMATS), default="text", show_default=True)
@click.option("--output-file", type=click.Path(dir_okay=False), help="Write the report there.")
@click.option("--statistics", is_flag=True, help="Count findings by rule instead of listing them.")
@click.option("--exit-zero", is_flag=True, help="Exit with 0 even if there are findings.")
@click.option("--stdin-filename", default="", metavar="NAME", help="Read standard input, call it NAME.")
@click.option("-q", "--quiet", is_flag=True, help="Print findings and errors, nothing else.")
@click.option("-v", "--verbose", is_flag=True, help=VERBOSE)
@click.version_option(__version__, message="%(prog)s %(version)s")
@click.pass_obj
def main(
    rules: Sequence[Rule] | None,
    /,
    paths: tuple[str, ...],
    choices: check.Choices,
    fix: bool,
    unsafe_fixes: bool,
    diff: bool,
    interactive: bool,
    verify: bool,
    stdin_filename: str,
    quiet: bool,
    exit_zero: bool,
    verbose: bool,
    **how: Any,
) -> int:
    """Find the mistakes that PyTorch's internals make easy.

    PATHS are files and directories; - is standard input.
    """
    _refuse(paths, stdin_filename, **how)
    extra = {"--unsafe-fixes": unsafe_fixes, "--interactive": interactive, "--verify": verify}
    _refuse_without_fix(fix or diff, **extra)
    request = check.Request(paths, choices, fix, unsafe_fixes, diff, stdin_filename, verify)
    if request.stdin and (interactive or verify):
        raise click.UsageError("--interactive and --verify are for paths, not for standard input")
    data = sys.stdin.buffer.read() if request.stdin else b""
    with Progress(off=quiet) as progress:
        outcome = check.run(
            request, data, rules=rules, progress=progress, choose=Asker() if interactive else None)
    if not quiet:
        say("warning", *outcome.notes)
    say("error", *map(str, outcome.report.errors))
    _print(outcome, quiet=quiet, **how)
    return outcome.status(exit_zero)


def _refuse(paths: tuple[str, ...], name: str, form: str, output_file: str | None, statistics: bool) -> None:
    """UsageError for options that do not go together."""
    if not paths and not name:
        raise click.UsageError("no paths given (see torchlint --help)")
    if "-" in paths and len(paths) > 1:
        raise click.UsageError("- cannot be combined with other paths")
    if name and paths not in ((), ("-",)):
        raise click.UsageError("--stdin-filename is for standard input, not for paths")
    if name.endswith(ENDING):
        raise click.UsageError("standard input cannot be a notebook; name the file instead")
    if statistics and form not in ("text", "concise"):
        raise click.UsageError(f"--statistics has no output format {form}")
    if output_file and not Path(output_file).absolute().parent.is_dir():
        raise click.UsageError(f"--output-file: there is no directory {Path(output_file).parent}")
    if output_file and check.is_checked(output_file, paths):
        raise click.UsageError(f"--output-file: {output_file} is one of the files to check; it would be overwritten")


def _refuse_without_fix(fix: bool, **options: bool) -> None:
    """UsageError for options that say how to fix where nothing is fixed."""
    given = [name for name, value in options.items() if value]
    if given and not fix:
        raise click.UsageError(f"{given[0]} goes with --fix or --diff")


def _print(outcome: check.Outcome, quiet: bool, form: str, output_file: str | None, statistics: bool) -> None:
    """The patch; or the fixed text of standard input, and the report beside it; or the report."""
    if outcome.patch:
        put(outcome.payload or b"", output_file)
        return
    aside = outcome.payload is not None
    if outcome.payload is not None:
        put(outcome.payload)
    if statistics:
        text = check.statistics(outcome.report)
    else:
        stream = sys.stderr if aside else sys.stdout
        colour = output_file is None and wants_colour(stream)
        size = columns(stream, *WIDTHS) if output_file is None else WIDTHS[0]
        text = render(outcome.report, form, colour=colour, summary=not quiet, columns=size)
    put(text, output_file, err=aside)


@click.command("rule", context_settings=HELP)
@click.argument("words", nargs=-1, metavar="[CODE|PREFIX|NAME]...")
@click.option("--all", "every", is_flag=True, help="List all rules.")
@click.option("--output-format", "form", type=click.Choice(["text", "json"]), default="text")
@click.pass_obj
def rule_command(rules: Sequence[Rule] | None, /, words: tuple[str, ...], every: bool, form: str) -> int:
    """Say what a rule finds, why it matters and what to do. For a prefix such as TL2, list the rules."""
    known = every_rule() if rules is None else rules
    if bool(words) == every:
        raise click.UsageError("name rules by code or name, or give --all")
    found = [known] if every else [find_rules(word, known) for word in words]
    if form == "json":
        put(show.as_json(rule for group in found for rule in group))
        return 0
    plain = sys.stdout.isatty()
    texts = [show.listing(group) if every or len(group) > 1 else show.pages(group, plain=plain) for group in found]
    put("\n".join(texts))
    return 0


@click.command("docs", context_settings=HELP)
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
def docs_command(folder: Path) -> int:
    """Write a page for every rule, in Markdown."""
    try:
        written = build(every_rule(), folder)
    except OSError as error:
        raise click.ClickException(f"{folder}: cannot be written: {error.strerror}") from None
    put(f"{len(written)} pages in {folder}\n")
    return 0


@click.command("new", context_settings=HELP)
@click.argument("name")
@click.option("--layer", required=True, type=click.Choice(LAYERS), help="The part of PyTorch it is about.")
def new_command(name: str, layer: str) -> int:
    """Begin a new rule, in a clone of torchlint."""
    try:
        created = create(name, layer)
    except NewRuleError as error:
        raise click.ClickException(str(error)) from None
    put(created.next_steps)
    return 0


@click.command("cache", context_settings=HELP)
@click.option("--clear", is_flag=True, help="Forget all results of earlier runs.")
def cache_command(clear: bool) -> int:
    """Say where results of earlier runs are kept, or forget them."""
    try:
        put(cache.forget() if clear else cache.describe())
    except OSError as error:
        raise click.ClickException(f"{cache.folder()}: {error.strerror}") from None
    return 0


@click.command("confirm", context_settings=HELP)
@click.argument("paths", nargs=-1, metavar="PATHS...")
@choosing
@click.option("--script", metavar="PATH:LINE:CODE",
              help="Print a Python script that repeats the experiment of one finding with torch alone.")
@click.option("--reach", is_flag=True, help="Say instead how much of the code can be run at all, and why not more.")
@click.option("--device", type=click.Choice(["cpu", "cuda", "auto"]), default="cpu", show_default=True)
@click.option("--timeout", type=Seconds(), default=10.0, show_default=True,
              metavar="SECONDS", help="The most that one finding may take.")
@click.option("--max-seconds", type=Seconds(), metavar="SECONDS",
              help="The most that all findings together may take; what still runs then is stopped.")
@click.option("-k", "keyword", default="", metavar="TEXT", help="Only findings with TEXT in place or name.")
@click.option("--check-modules", is_flag=True, help="Also hold every Module that can be built against TL428.")
@click.option("--fail-on", multiple=True, default=("confirmed",), show_default=True,
              type=click.Choice(["confirmed", "refuted", "cannot-tell", "never"]), help="Exit with 1 for it.")
@click.option("--output-format", "form", type=click.Choice([form for form in FORMATS if form != "concise"]),
              default="text", show_default=True, help="All but text and json hold what --fail-on names only.")
@click.option("--output-file", type=click.Path(dir_okay=False), help="Write the report there.")
@click.option("-q", "--quiet", is_flag=True, help="Print results and errors, nothing else.")
@click.option("-v", "--verbose", is_flag=True, expose_value=False, help=VERBOSE)
def confirm_command(script: str | None, reach: bool, **given: Any) -> int:
    """Run flagged code and say which findings are real. Needs torch."""
    # Late: nothing else may depend on it.
    from runtime_check.main import Request, confirm_command, reach_command, script_command

    request = Request(**given)
    if script is not None:
        return script_command(request, script)
    if not request.paths:
        raise click.UsageError("Missing argument 'PATHS...' (or --script PATH:LINE:CODE)")
    if "-" in request.paths:
        raise click.UsageError("confirm runs files: it cannot read standard input; write the code to a file first")
    if reach and request.form not in ("text", "json"):
        raise click.UsageError(f"--reach has no output format {request.form}")
    with Progress(off=request.quiet) as progress:
        command = reach_command if reach else confirm_command
        return command(request, lint_progress=progress)


main.commands = {
    "rule": rule_command, "cache": cache_command, "confirm": confirm_command, "docs": docs_command, "new": new_command,
}
