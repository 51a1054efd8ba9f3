"""Debug sessions of a process, and the connections to them."""
