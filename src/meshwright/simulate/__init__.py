"""Simulation: task graphs of plans, three engines, memory timelines."""
