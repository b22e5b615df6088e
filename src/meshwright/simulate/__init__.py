"""When everything happens: task graphs of plans, three engines, memory over time."""
