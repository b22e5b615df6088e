"""State of a rank in and out: weights, optimizer states, checkpoints, gradient norms."""
