"""Memory model: saved tensors, shard bytes, the memory timeline and its peak."""
