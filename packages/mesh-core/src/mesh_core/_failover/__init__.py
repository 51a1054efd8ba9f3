"""Taking over a job whose program is lost."""
