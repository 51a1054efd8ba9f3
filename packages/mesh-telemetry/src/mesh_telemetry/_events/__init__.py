"""The files in which a process stores its events on its host, and its socket for requests."""
