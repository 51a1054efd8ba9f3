"""The client script of a job: its process, and the backend that it uses."""
