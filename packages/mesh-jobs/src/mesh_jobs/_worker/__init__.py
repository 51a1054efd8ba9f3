"""The worker process of a host."""
