"""Plans that are simulated: evaluator, candidates, the clock, the gap to the bound."""
