"""Pattern matching and substitution: rules applied to graphs of models."""
