"""What the tests of this package share."""

from __future__ import annotations

import signal

# Ignored where the tests run in the background; the programs that they start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
