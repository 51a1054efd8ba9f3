"""The built website, as a reader uses it."""
