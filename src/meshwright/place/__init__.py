"""Where parallelism axes lie on the hardware: parallelism matrices and the device of each shard."""
