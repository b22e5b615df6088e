"""What the random plans of `make gpu-test` make use of, counted on CPUs: nothing is run.

    PYTHONPATH=tests python benchmarks/gpu_plans.py [VERSION OF PYTORCH]

Plans are drawn by seeds from the models that a PyTorch can trace; those that another version runs
can be counted here.
"""

from __future__ import annotations

import sys
from collections import Counter

import torch

from meshwright.lower.script import Script
from support.nccl_sample import random_plans, traced
from support.plan_features import features


def main(words: list[str]) -> None:
    version = words[0] if words else torch.__version__
    models = traced(version)
    plans = list(random_plans(models))
    print(
        f"{len(plans)} plans of {len(models)} models (PyTorch {version}); each occurs in so many:"
    )
    occurred = Counter(
        word for plan in plans for word in features(Script(plan.plan), plan.rewrites)
    )
    for word, count in sorted(occurred.items()):
        print(f"  {count:4d}  {word}")


if __name__ == "__main__":
    main(sys.argv[1:])
