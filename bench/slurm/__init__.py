"""What a user of a SLURM cluster has: a script to train with, and a job to run it in."""
