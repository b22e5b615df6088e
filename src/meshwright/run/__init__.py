"""Distributed execution and measurement of plans with PyTorch."""
