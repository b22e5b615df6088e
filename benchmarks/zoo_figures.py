"""Compute anew what `meshwright models` lists: captures the zoo at its published sizes (a minute).

python benchmarks/zoo_figures.py [NAME ...]
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from meshwright.capture.load import load_model
from meshwright.capture.zoo import ENTRIES
from meshwright.cost import zoo_figures
from meshwright.cost.figures import model_figures
from meshwright.cost.memory import OPTIMIZERS, training_memory

FILE = Path(zoo_figures.__file__).with_name(zoo_figures.FILE)


def measured(name: str, batch: int) -> zoo_figures.ZooFigures:
    """The figures of one model."""
    graph = load_model(f"zoo:{name}").graph
    memory = {kind: training_memory(graph, kind) for kind in OPTIMIZERS}
    return zoo_figures.ZooFigures(batch=batch, figures=model_figures(graph), memory=memory)


def main(names: list[str]) -> None:
    """Write the figures of these models, or of all."""
    kept = zoo_figures.zoo_figures() if names and FILE.exists() else {}
    for model in ENTRIES:
        if not names or model.name in names:
            kept[model.name] = measured(model.name, model.batch)
    lines = [f"{msgspec.json.encode(name).decode()}:{msgspec.json.encode(figures).decode()}"
             for name, figures in kept.items()]  # fmt: skip
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
