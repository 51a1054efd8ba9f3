"""The job of the new user: two nodes."""

from mesh_jobs import SlurmJob

job = SlurmJob({"trainers": 2}, name="new-user", time_limit=10)
