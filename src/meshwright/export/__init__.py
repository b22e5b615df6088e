"""Exporters of plans to PyTorch, Megatron-LM, torchtitan, JAX, DeepSpeed and Accelerate."""
