"""A directory of the client, mounted on every host."""
