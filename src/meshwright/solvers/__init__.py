"""Solvers that know no word of the field: cost networks, elimination, games, chains."""
