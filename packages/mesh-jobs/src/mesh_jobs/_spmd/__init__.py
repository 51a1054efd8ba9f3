"""Support for scripts that are written for torchrun."""
