"""Rule generation: small graphs enumerated, fingerprinted in a finite field, equal ones paired."""
