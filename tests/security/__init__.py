"""Attacks by another user of the machine, and the limits that stop them."""
