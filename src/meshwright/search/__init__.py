"""Choosing: placements and programs, ranked together."""
