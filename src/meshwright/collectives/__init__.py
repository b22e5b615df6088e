"""Reductions as programs: chunk states, collectives as laws on them, synthesis and two judges."""
