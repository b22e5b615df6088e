"""What each device does in a step, in order: computing, sending, receiving. Knows no torch."""
