"""Cases: what actors received before a failure, in one data-only file."""
