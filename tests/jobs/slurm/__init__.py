"""A real SLURM on hosts of a world, and the tests that run on it: `python -m tests.jobs.slurm`."""
