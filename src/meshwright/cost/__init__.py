"""Seconds: what a collective over groups of devices costs on a cluster, and why."""
