"""One trace by `torch.export` on fake tensors, with what Python reads and remembers."""
