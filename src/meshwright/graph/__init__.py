"""What a model computes on one device: operators, their shapes, counts and ways to be split."""
