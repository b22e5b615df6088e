"""Rules found by enumeration: every small graph, its value in a finite field, equal ones paired."""
