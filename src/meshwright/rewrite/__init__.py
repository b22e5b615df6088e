"""Graphs rewritten by rules that are generated, proved and then trusted."""
