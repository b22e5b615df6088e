"""Proofs and counterexamples of rules; never sees the generator."""
