"""Model sources: their text, the user's function, an example of model and inputs."""
