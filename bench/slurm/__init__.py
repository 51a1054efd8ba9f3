"""The files of a user of a SLURM cluster: a training script, and a job to run it in."""
