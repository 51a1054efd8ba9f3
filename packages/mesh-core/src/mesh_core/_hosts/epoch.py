"""Epochs of a host: how many machines were in its place before."""

from __future__ import annotations

# They are the high bits of incarnations and slots.
EPOCH_SHIFT = 20
EPOCH_MAX = (1 << 32 - EPOCH_SHIFT) - 1
