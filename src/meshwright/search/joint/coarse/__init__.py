"""Coarse solutions: global configs, and layouts by dynamic programming over mesh factors."""
