"""Plans for systems that people already use: PyTorch, Megatron, torchtitan, JAX and others."""
