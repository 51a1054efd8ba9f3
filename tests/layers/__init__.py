"""Each wheel alone in a clean environment."""
