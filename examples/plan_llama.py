"""The fastest plan of a Llama on H100s, beside DDP, FSDP, TP x DP and 3D: tokens/s, MFU, memory.

python examples/plan_llama.py zoo:llama3-8b 60
"""

import sys

import meshwright


def main(model: str = "zoo:llama3-8b/tiny", budget: str = "20") -> None:
    """Plan on two nodes, tell what the plan gets done, and keep it."""
    cluster = meshwright.Cluster.named("dgx-h100", node=2)
    planned = meshwright.find_plan(
        model, cluster, batch=32, dtype="bf16", mixed=True, budget=budget
    )
    for name, own in (*planned.baselines, ("plan", planned.best)):
        done = meshwright.throughput(own.plan, own.prediction)
        fits = "fits" if own.fits(planned.question.memory) else "does not fit"
        print(f"{name:20} {done.tokens_per_s:14,.0f} tokens/s, MFU {done.mfu:6.2%}, {fits}")
    meshwright.save_plan(planned.plan, "llama.json")


if __name__ == "__main__":
    main(*sys.argv[1:])
