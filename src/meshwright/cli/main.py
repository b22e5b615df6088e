"""The command line. Enters: words. Leaves: an exit code, 0 if all went well.

Rooms are imported inside the verbs, so that help costs nothing. Exit codes: 0 done, 2 a mistake
in what was given (one sentence on standard error), 130 interrupted with nothing to show.
"""

from __future__ import annotations

import os
import sys

import typer

from meshwright.cli.clusters import clusters
from meshwright.cli.models import capture, models
from meshwright.cli.place import place
from meshwright.cli.reduce import reduce
from meshwright.cli.validate import validate
from meshwright.foundation.errors import InputError

app = typer.Typer(
    name="meshwright",
    help="Plan distributed training on hierarchical clusters.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for verb in (clusters, place, reduce, models, capture):
    app.command()(verb)
app.add_typer(validate, name="validate")


def main() -> None:
    """Run the command line; a user's mistake ends in one sentence and exit code 2."""
    try:
        app()
    except InputError as error:
        print(f"meshwright: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        print(
            "meshwright: this verb needs PyTorch, which is not installed; "
            "install it with: pip install 'meshwright[torch]'.",
            file=sys.stderr,
        )
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print("meshwright: interrupted before there was anything to show", file=sys.stderr)
        raise SystemExit(130) from None
    except BrokenPipeError:
        # Whoever read our output has seen enough; keep the interpreter from flushing into the void.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
