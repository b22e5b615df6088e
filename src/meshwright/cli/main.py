"""Entry point of the command line. Enters: words. Leaves: an exit code, 0 if all went well.

Rooms are imported inside the verbs, so that help costs nothing. `exits` tells the exit codes.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated, Any, cast

import typer

from meshwright import __version__
from meshwright.base.errors import InputError
from meshwright.cli.completion import answered
from meshwright.cli.config import FILE, config_file, configured
from meshwright.cli.examples import keep_examples
from meshwright.cli.exits import Exit
from meshwright.cli.verbs.calibrate import calibrate
from meshwright.cli.verbs.check import check
from meshwright.cli.verbs.clusters import clusters
from meshwright.cli.verbs.demo import demo
from meshwright.cli.verbs.diff import diff
from meshwright.cli.verbs.explain import explain
from meshwright.cli.verbs.export import export
from meshwright.cli.verbs.models import capture, models
from meshwright.cli.verbs.place import place
from meshwright.cli.verbs.plan import plan
from meshwright.cli.verbs.plans import compare, simulate
from meshwright.cli.verbs.reduce import reduce
from meshwright.cli.verbs.replan import replan
from meshwright.cli.verbs.report import report
from meshwright.cli.verbs.rules import rules
from meshwright.cli.verbs.run import run
from meshwright.cli.verbs.sweep import sweep
from meshwright.cli.verbs.validate import validate

WIDEST_HELP = 120
"""Columns of a help text in a terminal that has more."""

app = typer.Typer(
    name="meshwright",
    help="Plan distributed training on hierarchical clusters.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"max_content_width": WIDEST_HELP},
    epilog=f"Exit codes: {', '.join(map(str, Exit))}.",
)
for verb in (
    plan, replan, explain, report, diff, check, export, run, sweep, compare, simulate, models,
    capture, calibrate, clusters, place, reduce, demo,
):  # fmt: skip
    app.command()(verb)
app.add_typer(rules, name="rules")
app.add_typer(validate, name="validate")

DEGREES = (
    "--dp", "--data", "--tp", "--tensor", "--pp", "--pipeline", "--cp", "--context", "--ep",
    "--expert",
)  # fmt: skip
"""Options of 'check' that people give to other verbs."""

# typer exports only one of the errors of its parser; the others have this parent in common.
UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__base__)


def _version(asked: bool) -> None:
    if asked:
        print(f"meshwright {__version__}")
        raise typer.Exit


@app.callback()
def everywhere(
    context: typer.Context,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Tell what happens inside, on standard error.")
    ] = False,
    config: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Options of verbs; else what MESHWRIGHT_CONFIG names, else ./" + FILE + ".",
        ),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it and exit.")
    ] = False,
) -> None:
    """Plan distributed training on hierarchical clusters."""
    if verbose:
        from meshwright.cli.verbose import tell

        tell()
    context.default_map = configured(context.command, config_file(config))


def command() -> Any:
    """The parser, with all verbs."""
    parser = typer.main.get_command(app)
    keep_examples(parser)
    return parser


def _called() -> int:
    code: int | None = command()(prog_name="meshwright", standalone_mode=False)
    return code or Exit.DONE


def main() -> None:
    """Run the command line; a user's mistake ends in one sentence."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        code = answered(_called)
        print(end="", flush=True)
    except InputError as error:
        raise _ending(str(error)) from None
    except UsageError as error:
        raise _usage(error) from None
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise _ending(
            "this verb needs PyTorch, which is not installed; "
            'install it with: pip install "meshwright[torch]".'
        ) from None
    except (KeyboardInterrupt, typer.Abort):
        code = Exit.INTERRUPTED
    except SystemExit as end:
        # rich and typer make a closed pipe an exit code of 1.
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        _forget_output()
        return
    except BrokenPipeError:
        _forget_output()
        return
    except OSError as error:
        if error.filename is not None:
            raise
        _forget_output()
        raise _ending(
            f"cannot write the output ({error.strerror}); send it where there is room."
        ) from None
    if code == Exit.INTERRUPTED:
        raise _ending("interrupted before there was anything to show", Exit.INTERRUPTED)
    raise SystemExit(code)


def _ending(sentence: str, code: Exit = Exit.MISTAKE) -> SystemExit:
    """The sentence on standard error, and the exit to raise."""
    print(f"meshwright: {sentence}", file=sys.stderr)
    return SystemExit(code)


def _usage(error: typer.BadParameter) -> SystemExit:
    """A mistake in the words themselves, as one line; no words at all get the help."""
    message = error.format_message()
    if type(error).__name__ == "NoArgsIsHelpError":
        print(message, file=sys.stderr)
        return SystemExit(Exit.MISTAKE)
    verb = error.ctx.command_path if error.ctx else "meshwright"
    problem = " ".join(message.split()).rstrip(".")
    if _from_file(error):
        problem += " (from the configuration file)"
    problem += _chosen_degree(verb, getattr(error, "option_name", ""))
    see = " See" if problem.endswith("?") else "; see"
    return _ending(f"{problem}{see} '{verb} --help'.")


def _chosen_degree(verb: str, option: str) -> str:
    """What to do with a degree that somebody gives to a verb that chooses degrees."""
    name = verb.rpartition(" ")[2]
    if name != "compare" or option not in DEGREES:
        return ""
    return (
        f": '{name}' chooses degrees; 'meshwright check MODEL {option} N' judges those that you "
        f"give, and 'meshwright plan MODEL {option} N' searches with them held"
    )


def _from_file(error: typer.BadParameter) -> bool:
    """Whether the value was not typed but configured."""
    parameter = getattr(error, "param", None)
    if error.ctx is None or parameter is None:
        return False
    source = error.ctx.get_parameter_source(parameter.name)
    return source is not None and source.name == "DEFAULT_MAP"


def _forget_output() -> None:
    """Keep the interpreter from flushing into the void when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
