"""Recording of a process: the actor, the run that it belongs to, and the thread that writes."""
