"""Changes of whole plans: more degrees, virtual stages, checkpointing, replicas, equal layers."""
