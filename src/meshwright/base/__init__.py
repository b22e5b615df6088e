"""Errors, units and integers: what every room needs and no room owns."""
