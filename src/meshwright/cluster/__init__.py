"""The machine: levels, the links that join them, and the device at the bottom."""
