"""Rule verification: symbolic proofs and counterexamples; never sees the generator."""
