"""Communication of a rank: process groups, collectives, programs, resharding, its own stream."""
