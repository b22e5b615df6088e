"""Rules that come with Meshwright, each with its certificate."""
