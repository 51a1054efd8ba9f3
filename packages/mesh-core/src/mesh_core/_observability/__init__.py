"""Events, traces and snapshots for monitoring a job."""
