"""Workers: a machine that serves one job after another."""
