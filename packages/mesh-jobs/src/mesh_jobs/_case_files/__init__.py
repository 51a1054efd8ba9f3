"""Cases on the hosts of a job, and their copies on this machine."""
