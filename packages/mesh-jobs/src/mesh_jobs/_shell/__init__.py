"""A shell on a host, under a pseudo-terminal."""
