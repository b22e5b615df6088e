"""Branch and bound over all layouts of a small problem: the oracle of the searches."""
