"""Distribution of chunks from the client to the hosts."""
