"""Hardware model: hierarchical clusters of levels, links and devices."""
