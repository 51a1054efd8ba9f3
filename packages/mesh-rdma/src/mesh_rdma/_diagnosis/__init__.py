"""Which transport each pair of processes uses, how fast it is, and who is connected."""
