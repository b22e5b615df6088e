"""Everything that is decided: the `Plan`, its file, and what was predicted and measured of it."""
