"""Configuration that all tests of this package share."""

from __future__ import annotations

import signal

# Background processes ignore SIGINT, which the programs started by the tests would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)
