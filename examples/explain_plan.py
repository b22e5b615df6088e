"""Why a plan is what it is: what a step is made of, what would help, each decision's runner-up."""

import meshwright


def main() -> None:
    """Plan, then ask."""
    planned = meshwright.find_plan("zoo:lenet/tiny", "laptop", batch=8, budget="10")
    print(meshwright.simulate_plan(planned.plan))
    print(meshwright.explain_plan(planned.plan, seconds=2))


if __name__ == "__main__":
    main()
