"""The search over islands: who shares the batch, who is a pipeline stage, who is left out."""
