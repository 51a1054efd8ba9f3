"""A directory of the client, written into a directory of every host."""
