"""Functions, modules, objects, pipes and actors that run in the processes."""
