"""Lowering of plans to per-device instructions: computing, sending, receiving. Knows no torch."""
