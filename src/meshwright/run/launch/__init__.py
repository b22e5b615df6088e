"""Launching ranks: local processes, torchrun, several NCCL ranks a GPU, thread affinity."""
