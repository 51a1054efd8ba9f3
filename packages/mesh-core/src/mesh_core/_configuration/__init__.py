"""Settings from code, a file or the environment."""
