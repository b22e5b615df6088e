"""Lower bounds on step time: what no plan can beat."""
