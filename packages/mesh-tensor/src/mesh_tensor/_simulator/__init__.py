"""Programs on simulated processes: time and memory without the hardware."""
