"""Lower bounds on the time of a step that no plan can beat."""
