"""The state folder of a job, `.mesh/<context>/`."""
