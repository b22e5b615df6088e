"""Moves on whole plans: degrees, virtual stages, recomputation, replication, equal layers."""
