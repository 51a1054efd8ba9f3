"""Recording of a process's events in files on its host."""
