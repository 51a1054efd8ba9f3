"""Scripts written for torchrun."""
