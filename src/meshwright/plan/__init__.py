"""Plans: the `Plan`, its file, and what was predicted and measured of it."""
