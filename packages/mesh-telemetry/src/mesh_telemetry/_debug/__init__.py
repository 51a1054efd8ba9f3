"""What stands in a process, and the way to it from outside."""
