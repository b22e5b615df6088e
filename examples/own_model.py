"""A model of your own, planned on the processes of a laptop. No change to the model is needed."""

import torch
from torch import Tensor, nn
from torch.nn import functional

import meshwright


class Classifier(nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(256, 1024), nn.Linear(1024, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of ten classes."""
        return self.outer(functional.relu(self.inner(x)))


def main() -> None:
    """Capture the model with its loss, plan it, and tell what was decided."""
    graph = meshwright.capture_model(
        Classifier(),
        inputs=(torch.randn(64, 256),),
        loss=functional.cross_entropy,
        targets=(torch.randint(0, 10, (64,)),),
    )
    planned = meshwright.find_plan(graph, "laptop", budget="20")
    print(planned)
    print(planned.plan)


if __name__ == "__main__":
    main()
