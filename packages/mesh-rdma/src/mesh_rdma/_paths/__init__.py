"""Selection of a transport for each buffer."""
