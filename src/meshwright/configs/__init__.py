"""Framework configurations (Megatron-LM, torchtitan, degrees): read, judged and bettered."""
