"""How many GPUs pay off: device-hours of a billion tokens on machines of several sizes."""

import meshwright


def main(model: str = "zoo:gpt2-xl/tiny", budget: str = "10") -> None:
    """The same batch on one and four nodes."""
    for nodes in (1, 4):
        cluster = meshwright.Cluster.named("dgx-a100", node=nodes)
        planned = meshwright.find_plan(model, cluster, batch=32, budget=budget)
        done = meshwright.throughput(planned.plan, planned.best.prediction)
        print(
            f"{cluster.devices:4} devices: {done.tokens_per_s:12,.0f} tokens/s, "
            f"{done.device_hours(1e9):.3g} device-hours for 1 B tokens"
        )


if __name__ == "__main__":
    main()
