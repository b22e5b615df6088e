"""What a machine really takes: operators and whole steps, measured with PyTorch."""
