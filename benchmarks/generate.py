"""Rules found by enumeration: how many graphs, candidates and rules, in which time and memory.

`python benchmarks/generate.py [PUBLISHED.json]` prints a row for each size of graphs: up to three
operators over the set of Unity's published rules, with the share of the published rules that is
found, and up to four over a smaller set. Every rule is proved by the verifier; with `--tried` it is
only tried out on plain matrices.
"""

from __future__ import annotations

import argparse
import os
import resource
import time
from pathlib import Path

from meshwright.rewrite.generate.operator_templates import ALGEBRA, UNITY, Templates
from meshwright.rewrite.generate.run import GeneratedRules, generate
from meshwright.rewrite.generate.size_conditions import with_sizes
from meshwright.rewrite.generate.verdicts import Prove
from meshwright.rewrite.language.published import parse_published
from meshwright.rewrite.language.terms import Plain, Rule
from meshwright.rewrite.verify.proof_verdict import verify
from meshwright.rewrite.verify.prove import Proof, prove
from rule_trial import agrees

COLUMNS = "{:>9} {:>9} {:>11} {:>10} {:>8} {:>6} {:>8}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("published", type=Path, nargs="?")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--tried", action="store_true")
    arguments = parser.parse_args()
    certain = agrees if arguments.tried else proved
    generated = measured("the operators of Unity's rules", UNITY, 3, certain, arguments.processes)
    if arguments.published is not None:
        print_share(generated, parse_published(arguments.published.read_text()))
    measured("relu, add, mul, linear", ALGEBRA, 4, certain, arguments.processes)


def proved(rule: Rule) -> bool:
    """Whether the verifier proves a rule; it is asked for a counterexample only if so."""
    return isinstance(prove(rule, seconds=2.0), Proof) and verify(rule).verdict == "proved"


def measured(
    title: str, templates: Templates, size: int, certain: Prove, processes: int
) -> GeneratedRules:
    begin = time.perf_counter()
    generated = generate(templates, size, certain, processes=processes)
    seconds = time.perf_counter() - begin
    print(f"{title}: {len(templates)} operators, graphs of up to {size}")
    print(COLUMNS.format("operators", "graphs", "with names", "candidates", "pruned", "rules",
                         "unproved"))  # fmt: skip
    for row in generated.tallies:
        print(COLUMNS.format(row.operators, row.graphs, row.elements, row.candidates, row.pruned,
                             row.rules, row.unproved))  # fmt: skip
    peaks = [
        resource.getrusage(who).ru_maxrss / 1024
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    ]
    general = sum(
        not any(isinstance(c, Plain) for c in rule.conditions) for rule in generated.rules
    )
    print(f"{general} rules hold for all inputs, the others for inputs in one piece")
    print(
        f"{len(generated.rules)} rules in {seconds:.1f} s with {processes} processes; at most "
        f"{peaks[0]:.0f} MiB in this one, {peaks[1]:.0f} MiB in each of the others\n"
    )
    return generated


def is_true(rule: Rule) -> bool:
    """Whether the sides agree on plain matrices for which both of them fit."""
    return not rule.free and agrees(with_sizes(rule))


def print_share(generated: GeneratedRules, published: tuple[Rule, ...]) -> None:
    true = [rule for rule in published if is_true(rule)]
    derived = [rule for rule in true if generated.gives(rule)]
    print(f"published rules: {len(published)}, true on plain matrices {len(true)}, found "
          f"{len(derived)} ({100 * len(derived) / len(true):.1f} %)")  # fmt: skip
    for rule in true:
        if rule not in derived:
            print(f"  not found: {rule}")
    print()


if __name__ == "__main__":
    main()
