"""Operator kernels: what PyTorch runs for an operator, whole or for a shard of it."""
