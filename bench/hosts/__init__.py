"""Workers on emulated hosts, and the measured program on one of them."""
