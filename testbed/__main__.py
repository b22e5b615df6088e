"""`python -m testbed`: testbeds that stay up until they are taken down. Enters: words. Leaves: an
exit code, 0 if all went well, 2 with one sentence for a mistake.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from meshwright.base.errors import InputError
from meshwright.cluster.cluster import Cluster
from testbed.bed import Testbed
from testbed.netlink import require_available
from testbed.owners import NOBODY, Owner
from testbed.removal import remove_kept, remove_leftovers, standing
from testbed.tree import address

app = typer.Typer(
    help="Hierarchical networks on one machine.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.command()
def up(
    cluster: Annotated[Path, typer.Argument(help="a cluster file")],
    inside: Annotated[bool, typer.Option(help="limit loopbacks, too")] = False,
) -> None:
    """Bring a testbed up that stays until it is taken down."""
    bed = Testbed(Cluster.load(str(cluster)), inside=inside, owner=NOBODY)
    bed.up()
    for leaf, name in enumerate(bed.leaves):
        print(f"{name}  {address(leaf)}")


@app.command()
def down(
    name: Annotated[str | None, typer.Argument(help="one of the list; without it, all")] = None,
) -> None:
    """Take down what stays up and what dead owners left; never what a living process uses."""
    require_available()
    for bed in (*remove_kept(name), *remove_leftovers()):
        print(f"{bed.name}  removed")


@app.command("list")
def list_all() -> None:
    """Tell which testbeds there are."""
    require_available()
    for bed in standing():
        print(f"{bed.name}  {len(bed.namespaces) - 1} leaves, {_state(bed.owner)}")


def _state(owner: Owner) -> str:
    if owner == NOBODY:
        return "stays up"
    return f"used by process {owner.process}" if owner.lives else "left behind"


def main() -> None:
    """Run the command line."""
    try:
        app(prog_name="testbed")
    except InputError as error:
        print(error, file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
