"""Cost models: collectives (alpha-beta), operators (roofline, profiles), memory, host overhead."""
