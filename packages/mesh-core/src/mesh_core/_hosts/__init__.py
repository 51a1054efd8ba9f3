"""Machines that serve a job as hosts."""
