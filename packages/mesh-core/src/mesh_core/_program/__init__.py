"""This process as a member of a job, and the program as its root."""
