"""This process as a member of a job."""
