"""Job extensions: resources of other packages that are opened on the hosts of a job."""
