"""One buffer to many processes and many buffers to one, over a tree of hosts."""
