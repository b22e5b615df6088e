"""Metropolis chains over layouts, with delta simulation, and the local search after them."""
