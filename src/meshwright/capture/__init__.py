"""From a PyTorch model to an `OperatorGraph`, on meta tensors; one of the two doors of torch."""
