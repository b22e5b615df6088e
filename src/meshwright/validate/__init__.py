"""Predictions held against published measurements."""
