"""Graph capture: from a PyTorch model to an `OperatorGraph` by `torch.export`, on meta tensors."""
