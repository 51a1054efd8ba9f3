"""Epochs of a host: the number of machines that served as this host before."""

from __future__ import annotations

# Epochs are the high bits of incarnations and slots.
EPOCH_SHIFT = 20
EPOCH_MAX = (1 << 32 - EPOCH_SHIFT) - 1
