"""How fast rules are judged: the library, and Unity's published rules, one process.

    python benchmarks/proofs.py

Prints for each set the verdicts, rules a second, and the most memory that was held.
"""

from __future__ import annotations

import resource
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from meshwright.rewrite.language.published import parse_published
from meshwright.rewrite.language.terms import Rule
from meshwright.rewrite.library import shipped_rules
from meshwright.rewrite.verify.proof_verdict import Verdict, verify, verify_published

PUBLISHED = Path(__file__).parent.parent / "tests/rewrite/data/unity_rules_320.json"


def report(name: str, rules: Sequence[Rule], judge: Callable[[Rule], Verdict]) -> None:
    begin = time.perf_counter()
    verdicts = [judge(rule) for rule in rules]
    seconds = time.perf_counter() - begin
    counts = Counter(judged.verdict for judged in verdicts)
    cases = sum(judged.worlds for judged in verdicts)
    summary = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{name}: {len(rules)} rules, {summary}; {seconds:.1f} s, {len(rules) / seconds:.1f} "
        f"rules/s, {cases / seconds:.0f} cases/s, {peak:.0f} MiB"
    )


if __name__ == "__main__":
    report("library", shipped_rules(), verify)
    report("published", parse_published(PUBLISHED.read_text()), verify_published)
