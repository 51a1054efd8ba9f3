"""Simulated processes: the time and memory of programs without the hardware."""
