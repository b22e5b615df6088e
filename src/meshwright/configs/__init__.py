"""Configurations that people write by hand: degrees of parallelism, judged and bettered."""
