"""Profiles of operators and links: what a machine really takes, measured with PyTorch."""
