"""Rewrites of a graph: segments, their variants and costs, stitched together."""
