"""What the verb `calibrate` does with --steps."""

from __future__ import annotations

from pathlib import Path

from meshwright.cli.console import new_console, print_json
from meshwright.cli.shared_options import chosen_cluster, require_output_path


def calibrate_steps(steps: str, cluster: str | None, out: str | None, *, json: bool) -> None:
    """Fit the rates of a cluster's device to measured steps, and write the cluster with them."""
    from meshwright.base.errors import InputError
    from meshwright.base.files import write_atomically
    from meshwright.cluster.toml import dump_cluster
    from meshwright.validate.own_steps import calibrated_by_steps, load_measured_steps

    if cluster is None or out is None:
        raise InputError(
            "steps are measured on a cluster, and its rates are written to a file",
            "write it as 'meshwright calibrate --steps STEPS.csv --cluster NAME --out NEW.toml'",
        )
    require_output_path("--out", out)
    described = chosen_cluster(cluster, None, None, None)
    fitted = calibrated_by_steps(described, load_measured_steps(steps))
    write_atomically(Path(out), dump_cluster(fitted.cluster).encode())
    if json:
        print_json(
            {
                "factor": fitted.factor,
                "before": list(fitted.before),
                "held_out": list(fitted.held_out),
                "cluster": out,
            }
        )
        return
    worst = [max(abs(ratio - 1) for ratio in ratios) for ratios in (fitted.before, fitted.held_out)]
    new_console().print(
        f"{len(fitted.before)} steps: kernels reach {fitted.factor:.2f} of what the cluster said. "
        f"The worst was off by {worst[0]:.0%} before, and by {worst[1]:.0%} where the others chose "
        f"the rates. Written to {out}, whose predictions carry that as their band."
    )
