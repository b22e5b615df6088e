"""Failure detection: ranks that watch each other, and a run that fails ends everywhere."""
