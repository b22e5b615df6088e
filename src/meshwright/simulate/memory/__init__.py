"""What a device holds and when: saved tensors, shard sizes, the peak."""
