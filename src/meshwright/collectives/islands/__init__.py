"""Reductions over groups of unequal size: P²'s programs on a sum of regular islands."""
