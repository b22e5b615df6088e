"""Rules as text, what operators compute, and what both mean on arrays of shards."""
