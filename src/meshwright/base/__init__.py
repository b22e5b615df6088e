"""Common utilities: errors, units, integers, atomic files, processes, memoisation, Numba."""
