"""Recording: the messages of each actor, in a bounded log that outlives its process."""
