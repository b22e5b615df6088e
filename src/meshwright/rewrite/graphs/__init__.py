"""Rules on graphs of models: where they fit, and what becomes of the graph."""
