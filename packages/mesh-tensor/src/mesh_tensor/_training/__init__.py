"""Training that continues after the failure of processes and hosts."""
