"""Rule language: text form, operator definitions, and semantics on arrays of shards."""
