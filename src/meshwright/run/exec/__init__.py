"""The executor of a rank: segments, parameters, gradient reduction, random numbers."""
