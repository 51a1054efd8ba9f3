"""Copies from one buffer to many processes, over a tree of hosts, and from many buffers to one."""
