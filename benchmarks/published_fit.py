"""Rates of kernels fitted to published steps (docs/decisions/0025-published-steps.md).

    python benchmarks/published_fit.py --simulate FILE [--only TEXT] [--seconds S]
                                                           steps and elasticities; goes on with FILE
    python benchmarks/published_fit.py FILE... [--write [--machines NAMES]]
                                                           the fit, from those

Simulating: every distinct row is simulated once with the catalogue's rates, and again with the
tasks of each class (products, attention, grouped products, other kernels, update, activations and
parameters on their way) 5 % longer; of large task graphs the classes that compute share what is
left by how long they take in all. With e_c the elasticity of class c and m_c the factor by which
its tasks get longer with other rates, the step is taken to be  p · (1 + Σ e_c (m_c - 1)).
Fitting: Gauss-Newton, reweighted to the sum of sqrt(log(predicted / measured)² + 0.04²), over the
logarithms of rates. Each begins at an expectation that no row had a part in (EXPECTED) and is held
there by a ridge, loosely for a GPU's architecture and whether kernels are fused, more tightly for
what one machine has besides. `--write` puts the rates into the catalogue (of some machines only, if
others would hardly change) and, fitted without each fold, into validate/data/published_folds.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import re
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from meshwright.base.quantities import Seconds
from meshwright.cost.operator import FOUR_BITS
from meshwright.validate.bands import bands_of
from meshwright.validate.published.accuracy import errors_of
from meshwright.validate.published.folds import FOLDS, folds_of, key_of
from meshwright.validate.published.machines import machine_of
from meshwright.validate.published.models import EXPERTS
from meshwright.validate.published.predicted_rows import JudgedRow
from meshwright.validate.published.rows import PublishedRow, load_published

CLASSES = ("prod", "attn", "group", "elem", "update", "activations", "parameters")
COMPUTING = CLASSES[:5]
LONGER = 0.05
LARGE = 60_000
"""Task graphs of more tasks are simulated again for what moves only."""

FAMILIES = {
    "hgx-a100": "ampere", "jean-zay-a100": "ampere", "vela-a100": "ampere", "hgx-h100": "hopper",
    "vela-h100": "hopper", "dgx-h200": "hopper", "grand-teton-h100": "hopper",
    "alps-gh200": "grace",
    "dgx-b200": "blackwell", "gb200-nvl72": "blackwell", "dgx-b300": "ultra",
    "gb300-nvl72": "ultra", "jean-zay-v100": "volta",
}  # fmt: skip
"""Architectures of machines; any other is its own."""

EXPECTED = {"best": 0.7, "narrow": 0.6, "attended": 0.55, "grouped": 0.8, "streaming": 0.83,
            "half": 200.0, "launch": 4e-6, "scores": 5.0, "joined": 1.5,
            }  # fmt: skip
"""Before any row is seen: large products at 70 % of the peak, fused attention (`attended` is best x
attention, of all scores) at about what FlashAttention-2 publishes
for A100s, the rest as `Rates`."""
OTHERWISE = {("launch", "grace"): 5e-5, ("scores", "grace"): 15.0}
"""Of Sailor's runs: launches of Megatron-DeepSpeed (a fit to vTrain's rows of it said 55 us), and a
softmax written out in float32, of scale, mask, maximum, sum, quotient, dropout and casts."""
PEAK = 312e12
"""In 16 bits, of an A100, whose extents stand in EXPECTED: those of other GPUs, whose kernels are
cut into tiles for their processors, grow with the root of their peak."""
IN_FOUR_BITS = 0.4
"""`narrow` in 4 bits: 15 % of the products stay in 16 bits, at a quarter of the peak (NVIDIA's
NVFP4 recipe), the others reach 55 %."""
WHOLE = {"best": 0.3, "narrow": 0.3, "attended": 0.5, "grouped": 0.5, "streaming": 0.1,
         "half": 0.3, "launch": 0.7, "scores": 0.5, "joined": 0.3}  # fmt: skip
"""How far all machines together may be from it (one ridge, of logarithms)."""
LOOSE = {"best": 0.3, "narrow": 0.3, "attended": 0.5, "grouped": 0.5, "streaming": 0.1,
         "half": 0.2, "launch": 0.7, "scores": 0.5, "joined": 0.1}  # fmt: skip
"""How far an architecture may be from all."""
TIGHT = 0.4
"""How far a machine may be from its architecture."""
MOVED = 0.7
"""The share of attention that is not fused which moves scores, for heads of about 128."""
RIDGE = 0.2
CORNER = 0.04
ROUNDS = 7
MOVE = 1e-3


def simulate_rows(path: str, only: str, seconds: float) -> None:
    """A line of JSON for every row that the file has none for: what was predicted, elasticities."""
    from meshwright.capture.load import load_model
    from meshwright.validate.published.predicted_rows import Predictor, question_of

    predictor = Predictor(lambda name, batch: load_model(name, batch).graph)
    end, file = time.monotonic() + seconds, Path(path)
    lines = list(map(json.loads, file.read_text().splitlines())) if file.exists() else []
    done, known = {line["row"] for line in lines}, {line["question"]: line for line in lines}
    with file.open("a") as out:
        for number, row in enumerate(load_published()):
            label = f"{row.source} {row.model} {row.gpu} {row.note}"
            if number in done or only not in label or time.monotonic() > end:
                continue
            asked = ""
            try:
                question = question_of(row)
                asked = hashlib.sha256(repr(question).encode()).hexdigest()[:16]
                if asked not in known:
                    known[asked] = _simulated(predictor, question)
                figures = known[asked]
            except Exception as error:  # As in `Predictor.judge`.
                figures = {"skipped": str(error)}
            out.write(json.dumps({**figures, "row": number, "question": asked}) + "\n")
            out.flush()


def _simulated(predictor: Any, question: Any) -> dict[str, Any]:
    from meshwright.simulate import full

    simulation, _ = predictor.simulated(question)
    problem, tasks = simulation.problem, simulation.problem.tasks
    kinds, makespan = _classes(problem), simulation.timeline.makespan

    def elasticity(number: int) -> float:
        longer = tasks.live & (kinds == number)
        duration, hold = tasks.duration.copy(), tasks.hold.copy()
        duration[longer] = np.ceil(duration[longer] * (1 + LONGER)).astype(np.int64)
        hold[longer] = (hold[longer] * (1 + LONGER)).astype(np.int64)
        slower = full.simulate(tasks._replace(duration=duration, hold=hold)).makespan
        return float((slower - makespan) / makespan / LONGER)

    in_all = [float(tasks.duration[tasks.live & (kinds == n)].sum()) for n in range(len(CLASSES))]
    moving = [elasticity(n) for n in range(len(COMPUTING), len(CLASSES))]
    if tasks.live.sum() < LARGE:
        computing = [elasticity(n) if in_all[n] else 0.0 for n in range(len(COMPUTING))]
    else:
        left = (1 - sum(moving)) / sum(in_all[: len(COMPUTING)])
        computing = [left * total for total in in_all[: len(COMPUTING)]]
    counts = [int((tasks.live & (kinds == n)).sum()) for n in range(len(CLASSES))]
    reached = question.cluster.device.reached
    rates = {name: getattr(reached, name) for name in EXPECTED if name != "attended"}
    if question.cluster.device.running.products == FOUR_BITS:
        rates["narrow"] = reached.narrowest
    return {
        "predicted_s": simulation.prediction.step,
        "predicted_bytes": simulation.prediction.memory.total,
        "memory": msgspec.structs.asdict(simulation.prediction.memory),
        "elasticity": dict(zip(CLASSES, (*computing, *moving), strict=True)),
        "launched_ns": {
            n: c / max(1.0, t) for n, c, t in zip(CLASSES, counts, in_all, strict=True)
        },
        "rates": rates | {"attended": reached.best * reached.attention},
    }


def _classes(problem: Any) -> Any:
    template = problem.template
    kinds = np.full(len(problem.tasks.live), -1)
    of_units = np.array([CLASSES.index(_class(unit)) for unit in problem.units])
    moving = np.where(
        template.parameters, CLASSES.index("parameters"), CLASSES.index("activations")
    )
    for tasks, classes in (
        *((tasks, of_units) for tasks in (template.forward, template.backward)),
        *((tasks, moving) for tasks in (template.carry, template.carry_back, template.again)),
        (template.regather[:, None], moving),
        (template.update[:, None], np.full(len(moving), CLASSES.index("update"))),
    ):
        present = tasks >= 0
        kinds[tasks[present]] = np.broadcast_to(classes[:, None], tasks.shape)[present]
    return kinds


def _class(unit: Any) -> str:
    kinds = {member.call.kind for member in unit.members}
    if "scaled_dot_product_attention" in kinds:
        return "attn"
    if kinds & {"routed_experts", "_grouped_mm"}:
        return "group"
    return "prod" if kinds & {"linear", "addmm", "mm", "bmm", "matmul"} else "elem"


class Row:
    """A published row with what was simulated of it."""

    def __init__(self, row: PublishedRow, figures: Mapping[str, Any]) -> None:
        self.row, self.found = row, figures
        cluster = machine_of(row)
        self.machine, software = cluster.name, cluster.device.running
        self.family = FAMILIES.get(self.machine, self.machine)
        self.kind = "fused" if software.fuses else "eager"
        self.narrow, self.flash, self.joins = software.products, software.flash, software.joins
        self.measured = float(row.measured_s or math.nan)
        peaks = dict(cluster.device.peak)
        peak = PEAK if row.gpu.startswith("tpu") else peaks.get("bf16", peaks.get("fp16", PEAK))
        self.large = math.sqrt(peak / PEAK)
        self.four_bits = FOUR_BITS in peaks
        """Extents at which a chip reaches half of its peak, beside those of an A100."""

    def names(self, rate: str) -> tuple[str, ...]:
        """The parameters that add up to the logarithm of a rate."""
        of = "" if rate in ("half", "grouped", "streaming") else self.kind
        rate = f"narrow {self.narrow}" if rate == "narrow" else rate
        return f"{rate}|all|{of}", f"{rate}|{self.family}|{of}", f"{rate}|{self.machine}"

    def seconds(self, rate: Callable[[Row, str], float]) -> float:
        """The step with other rates."""
        before, step = self.found["rates"], 1.0
        product = "narrow" if self.narrow else "best"
        faster, half = rate(self, product) / before[product], rate(self, "half")
        loss = rate(self, "grouped") / before["grouped"]
        loss *= rate(self, "joined") / before["joined"] if self.joins else 1.0
        grouped = faster * (loss if self._groups() > 1 else 1.0)
        slower = {
            "prod": self._longer(half, self._products()) / faster,
            "group": self._longer(half, self._experts()) / grouped,
            "attn": self._attention(rate),
            "elem": before["streaming"] / rate(self, "streaming"),
            "update": before["streaming"] / rate(self, "streaming"),
        }
        launch = rate(self, "launch") / before["launch"]
        for kind, elasticity in self.found["elasticity"].items():
            # A kernel forward, two or three backward.
            begun = min(0.9, 1.5e9 * before["launch"] * self.found["launched_ns"][kind])
            factor = slower.get(kind, 1.0)
            if kind in COMPUTING:
                factor = (1 - begun) * factor + begun * launch
            step += elasticity * (factor - 1)
        return float(self.found["predicted_s"] * max(step, 0.05))

    def _attention(self, rate: Callable[[Row, str], float]) -> float:
        before = self.found["rates"]
        if self.flash:
            return float(before["attended"] / rate(self, "attended"))
        moved = MOVED * rate(self, "scores") / before["scores"]
        return float(moved + (1 - MOVED) * before["attended"] / rate(self, "attended"))

    def _longer(self, half: float, products: Sequence[tuple[float, ...]]) -> float:
        """How much longer products, each a share and its extents, get with another half."""

        def taken(half_extent: float) -> float:
            return sum(
                n * math.prod(1 + half_extent / e for e in extents) for n, *extents in products
            )

        return taken(half) / taken(self.found["rates"]["half"])

    def _products(self) -> list[tuple[float, ...]]:
        """Those of layers 4 hidden widths deep."""
        row = self.row
        hidden, cut = row.hidden or 1, row.tp or 1
        rows = (row.micro_batch or 1) * (row.seq or 1) / (row.cp or 1)
        return [
            (3, 3 * hidden / cut, hidden, rows),
            (1, hidden, hidden / cut, rows),
            (4, 4 * hidden / cut, hidden, rows),
            (4, hidden, 4 * hidden / cut, rows),
        ]

    def _groups(self) -> int:
        """Experts on a device."""
        match = EXPERTS.search(self.row.note)
        if match is None:
            return 1
        experts = int(match[1]) // (2 if "every other layer" in self.row.note else 1)
        return max(1, experts // (self.row.ep or 1))

    def _experts(self) -> list[tuple[float, ...]]:
        """That of one expert."""
        row, match = self.row, EXPERTS.search(self.row.note)
        if match is None:
            return self._products()
        rows = (row.micro_batch or 1) * (row.seq or 1) / (row.cp or 1)
        rows *= int(match[2]) * (row.ep or 1) / int(match[1])
        return [(1, row.hidden or 1, row.ffn or 1, max(1.0, rows))]


class Fit:
    """Parameters by name: logarithms beside what is expected."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.held: dict[str, float] = {}
        for row in rows:
            for rate in self.rates_fitted(row):
                held = (WHOLE[rate], LOOSE[rate], TIGHT)
                self.held |= dict(zip(row.names(rate), held, strict=True))
        self.place = {name: n for n, name in enumerate(self.held)}
        self.values = np.zeros(len(self.held))
        self._solve(rows)

    @staticmethod
    def rates_fitted(row: Row) -> list[str]:
        """The rates that a row has a part in."""
        product = "narrow" if row.narrow else "best"
        rates = [product, "half", "attended" if row.flash else "scores", "streaming"]
        rates += ["grouped"] if row.found["elasticity"]["group"] else []
        rates += ["joined"] if row.joins and "grouped" in rates else []
        return rates + (["launch"] if row.kind == "eager" or row.family == "grace" else [])

    def rate(self, row: Row, rate: str) -> float:
        """A rate as fitted; what no row has a part in as it was."""
        names = row.names(rate)
        if rate == "launch" and names[1] not in self.place:
            return float(row.found["rates"]["launch"])
        total = sum(self.values[self.place[name]] for name in names if name in self.place)
        expected = OTHERWISE.get((rate, row.family), EXPECTED[rate])
        expected = IN_FOUR_BITS if rate == "narrow" and row.narrow == FOUR_BITS else expected
        return float(expected * (row.large if rate == "half" else 1.0) * math.exp(total))

    def _solve(self, rows: Sequence[Row]) -> None:
        pull = RIDGE / np.array(list(self.held.values())) ** 2
        for _ in range(ROUNDS):
            off = np.array([math.log(row.seconds(self.rate) / row.measured) for row in rows])
            slopes = np.zeros((len(rows), len(self.values)))
            for n, row in enumerate(rows):
                for rate in self.rates_fitted(row):
                    # What adds up to one logarithm has one slope.
                    slope = (self._moved(row, rate) - off[n]) / MOVE
                    slopes[n, [self.place[name] for name in row.names(rate)]] = slope
            weights = 1 / np.sqrt(off**2 + CORNER**2)
            square = (slopes * weights[:, None]).T @ slopes + np.diag(pull)
            change = np.linalg.solve(square, -(slopes.T @ (weights * off)) - pull * self.values)
            self.values += np.clip(change, -0.4, 0.4)

    def _moved(self, row: Row, moved: str) -> float:
        """The logarithm of predicted over measured with one rate a little higher."""

        def rate(any_row: Row, name: str) -> float:
            return self.rate(any_row, name) * (math.exp(MOVE) if name == moved else 1.0)

        return math.log(row.seconds(rate) / row.measured)


LIKE = {
    **dict.fromkeys(("jean-zay-a100", "vela-a100", "vtrain-a100", "dgx-a100", "aws-p4d", "aws-p4de",
                     "gcp-a2-high", "gcp-a2-ultra", "azure-nd-a100", "azure-ndm-a100"), "hgx-a100"),
    **dict.fromkeys(("vela-h100", "dgx-h100", "machine", "aws-p5", "gcp-a3-mega", "azure-nd-h100",
                     "dgx-h200", "pods-h100", "aws-p5e", "gcp-a3-ultra", "azure-nd-h200"),
                    "hgx-h100"),
}  # fmt: skip
"""Machines that have the rates of others where they have no rows of a kind; an H200 has all of an
H100's, whose chip it has."""
UNALIGNED = {"ampere": 0.0307, "volta": 0.0307}
"""The share of the peak that attention with heads of 108 or 150 reaches where it is not fused, read
off rows of BigScience: with it `Rates.ragged`."""
DISPATCH = {"vtrain-a100": 40e-6}
"""What a host of Megatron-DeepSpeed needs for an operator, read off vTrain's rows inside a node,
where most steps wait for it. No other published step does, so that nothing is known of theirs."""
TIMES = ("launch", "dispatch")
SECTIONS = {"eager": "rates", "fused": "fusing"}

Sections = dict[str, dict[str, dict[str, float]]]
"""By machine and section of a device."""


def sections_of(fit: Fit, rows: Sequence[Row]) -> Sections:
    """The rates as the catalogue has them."""
    sections: Sections = defaultdict(dict)
    for row in rows:
        if row.machine == "dgx-h200":
            continue
        section = sections[row.machine].setdefault(row.kind, {"half_head": 20.0})
        rates = {name: fit.rate(row, name) for name in EXPECTED}
        section |= {name: rates[name] for name in ("best", "streaming", "half")}
        section["attention"] = rates["attended"] / rates["best"]
        for name, holds in (
            ("narrow", row.narrow == "fp8"),
            ("narrowest", row.narrow == FOUR_BITS),
            ("grouped", bool(row.found["elasticity"]["group"])),
            ("joined", row.joins),
            ("launch", "launch" in fit.rates_fitted(row)),
            ("scores", not row.flash),
        ):
            if holds:
                section[name] = rates["narrow" if name == "narrowest" else name]
        if row.narrow != FOUR_BITS and row.four_bits:
            section.setdefault("narrowest", IN_FOUR_BITS)
        if row.family in UNALIGNED:
            section["ragged"] = UNALIGNED[row.family] / rates["attended"]
    for kinds in sections.values():
        if len(kinds) == 2:
            eager, fused = kinds["eager"], kinds["fused"]
            eager["grouped"] = fused.get("grouped", EXPECTED["grouped"])
            if "narrow" in fused and "narrow" not in eager:
                eager["narrow"] = fused["narrow"] * eager["best"] / fused["best"]
    for name, other in LIKE.items():
        sections[name] = sections[other] | sections[name]
    for name, seconds in DISPATCH.items():
        fused = sections[name]["fused"] | {"dispatch": seconds}
        sections[name] = sections[name] | {"fused": fused}
    return {
        name: {SECTIONS[kind]: kinds[kind] for kind in SECTIONS}
        if len(kinds) == 2
        else {"rates": next(iter(kinds.values()))}
        for name, kinds in sections.items()
    }


def written(text: str, sections: Mapping[str, Mapping[str, float]]) -> str:
    """A machine's description with these rates."""
    text = re.sub(r"(# [^\n]*\n)?\[device\.(rates|fusing)\]\n(?:[^\n\[]+\n)*\n", "", text)
    lines = ["# Fitted to published steps (benchmarks/published_fit.py, decision 0025)."]
    for section, rates in sections.items():
        lines += [f"[device.{section}]"]
        for name, value in rates.items():
            shown = f'"{value * 1e6:.3g} us"' if name in TIMES else f"{value:.4g}"
            lines += [f"{name} = {shown}"]
        lines += [""]
    head, levels = text.split("[[levels]]", 1)
    return head + "\n".join(lines) + "\n[[levels]]" + levels


def write(
    whole: Fit, fits: Mapping[int, Fit], rows: Sequence[Row], machines: Sequence[str]
) -> None:
    """The catalogue, the rates of folds, and error bands of held-out rows (which `meshwright
    validate published --held-out --bands` simulates).
    """
    folder = Path("src/meshwright")
    for name, sections in sections_of(whole, rows).items():
        if machines and name not in machines:
            continue
        path = folder / f"cluster/catalogue/{name}.toml"
        path.write_text(written(path.read_text(), sections))
    folds = {
        str(fold): {
            name: {"rates": fold_sections["rates"], "fusing": fold_sections.get("fusing")}
            # A machine of which a fold has all rows has the rates of its family there, or of all.
            for name, fold_sections in sections_of(fit, rows).items()
            if name in {row.machine for row in rows}
        }
        for fold, fit in fits.items()
    }
    data = folder / "validate/data"
    (data / "published_folds.json").write_text(json.dumps(folds, indent=1, sort_keys=True) + "\n")
    numbers = folds_of(load_published())
    judged = [
        JudgedRow(
            row=row.row,
            predicted_s=Seconds(row.seconds(fits[numbers[key_of(row.row)]].rate)),
        )
        for row in rows
    ]
    bands = msgspec.json.format(msgspec.json.encode(bands_of(judged)), indent=1)
    (data / "published_bands.json").write_bytes(bands + b"\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*")
    parser.add_argument("--simulate")
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--machines", type=lambda text: text.split(","), default=[])
    args = parser.parse_args()
    if args.simulate:
        simulate_rows(args.simulate, args.only, args.seconds)
        return
    published = load_published()
    lines = [
        json.loads(line) for file in args.files for line in Path(file).read_text().splitlines()
    ]
    by_row = {line["row"]: line for line in lines}
    rows = [
        Row(published[n], line)
        for n, line in sorted(by_row.items())
        if "predicted_s" in line and published[n].measured_s is not None
    ]
    folds = folds_of(published)
    whole = Fit(rows)
    others = {f: [row for row in rows if folds[key_of(row.row)] != f] for f in range(FOLDS)}
    fits = {f: Fit(rest) for f, rest in others.items()}
    tell("as simulated", rows, lambda row: row.found["predicted_s"])
    tell("fitted", rows, lambda row: row.seconds(whole.rate))
    tell("held out", rows, lambda row: row.seconds(fits[folds[key_of(row.row)]].rate))
    for machine, sections in sections_of(whole, rows).items():
        for kind, rates in sections.items():
            print(machine, kind, {name: float(f"{v:.4g}") for name, v in rates.items()})
    if args.write:
        write(whole, fits, rows, args.machines)


def tell(title: str, rows: Sequence[Row], seconds: Callable[[Row], float]) -> None:
    """Errors of all rows and by source."""
    groups = defaultdict(list)
    for row in rows:
        ratio = seconds(row) / row.measured
        groups["all"].append(ratio)
        groups[row.row.origin].append(ratio)
    print(title)
    for name, ratios in groups.items():
        errors = errors_of(ratios)
        shares = (f"{share:+7.1%}" for share in (errors.median, errors.ninetieth, errors.signed))
        print(f"  {name[:44]:44} {errors.rows:4}", *shares)


if __name__ == "__main__":
    main()
