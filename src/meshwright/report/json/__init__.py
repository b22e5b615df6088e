"""What scripts read: JSON documents, and traces for Perfetto."""
