"""From what happens in a process to files of its host."""
