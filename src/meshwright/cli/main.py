"""The command line. Enters: words. Leaves: an exit code, 0 if all went well.

Rooms are imported inside the verbs, so that help costs nothing. Exit codes: 0 done, 1 `check`
says no, 2 a mistake in what was given or nowhere to write (one sentence on standard error), 3 a run
that failed on some rank, 130 interrupted with nothing to show. A reader that goes away early is no
mistake: what it took is all it wanted.
"""

from __future__ import annotations

import io
import os
import sys
from typing import cast

import typer

from meshwright.cli.calibrate import calibrate
from meshwright.cli.check import check
from meshwright.cli.clusters import clusters
from meshwright.cli.models import capture, models
from meshwright.cli.place import place
from meshwright.cli.plan import plan
from meshwright.cli.plans import compare, simulate
from meshwright.cli.reduce import reduce
from meshwright.cli.rules import rules
from meshwright.cli.run import run
from meshwright.cli.sweep import sweep
from meshwright.cli.validate import validate
from meshwright.foundation.errors import InputError

INTERRUPTED = 130

app = typer.Typer(
    name="meshwright",
    help="Plan distributed training on hierarchical clusters.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for verb in (
    plan, check, run, sweep, compare, simulate, models, capture, calibrate, clusters, place, reduce
):  # fmt: skip
    app.command()(verb)
app.add_typer(rules, name="rules")
app.add_typer(validate, name="validate")

# typer exports only one of the errors of its parser; the others have this parent in common.
UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__base__)


def main() -> None:
    """Run the command line; a user's mistake ends in one sentence and exit code 2."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        code = app(prog_name="meshwright", standalone_mode=False)
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
            "install it with: pip install 'meshwright[torch]'."
        ) from None
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
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
    if code == INTERRUPTED:
        raise _ending("interrupted before there was anything to show", INTERRUPTED)
    raise SystemExit(code)


def _ending(sentence: str, code: int = 2) -> SystemExit:
    """The sentence on standard error, and the exit to raise."""
    print(f"meshwright: {sentence}", file=sys.stderr)
    return SystemExit(code)


def _usage(error: typer.BadParameter) -> SystemExit:
    """A mistake in the words themselves, as one line; no words at all get the help."""
    message = error.format_message()
    if type(error).__name__ == "NoArgsIsHelpError":
        print(message, file=sys.stderr)
        return SystemExit(2)
    verb = error.ctx.command_path if error.ctx else "meshwright"
    problem = " ".join(message.split()).rstrip(".")
    see = " See" if problem.endswith("?") else "; see"
    return _ending(f"{problem}{see} '{verb} --help'.")


def _forget_output() -> None:
    """Keep the interpreter from flushing into the void when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
