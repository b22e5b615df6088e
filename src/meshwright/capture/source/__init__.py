"""Where a model comes from: its text, the user's function, an example of model and inputs."""
