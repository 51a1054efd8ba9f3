"""The same training and the same kills under several systems: `python -m bench.recoveries`."""
