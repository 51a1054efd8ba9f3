"""Job extensions: what other packages open on the hosts of a job."""
