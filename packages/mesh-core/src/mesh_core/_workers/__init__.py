"""Workers, which serve their machine to one job after another."""
