"""JSON documents for scripts, and traces for Perfetto."""
