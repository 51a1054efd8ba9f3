"""Events, traces and snapshots for those who look at a job."""
