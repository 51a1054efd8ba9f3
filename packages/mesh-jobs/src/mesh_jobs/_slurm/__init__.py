"""Hosts from SLURM."""
