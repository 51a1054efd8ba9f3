"""Recording: what each actor receives, in a bounded log that outlives its process."""
