"""A real SLURM on emulated hosts, and the tests that run on it: `python -m tests.jobs.slurm`."""
