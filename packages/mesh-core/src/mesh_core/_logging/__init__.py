"""Capturing, forwarding and printing the output of processes."""
