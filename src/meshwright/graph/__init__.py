"""Operator graph of a model on one device: operators, shapes, FLOPs, bytes and splits."""
