"""Search: joint planner, Metropolis chains, islands, sweeps, ranking of P² placements."""
