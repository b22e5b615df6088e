"""Version of Meshwright, also where it was not installed but put on the path."""

VERSION = "0.2.0"
