"""Signals are handled whatever the main thread does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

from mesh_core.spi import on_signals

# The main thread holds the lock of the event most of the time, and a signal handler would wait for
# it.
_WAITS = """
import os, signal, threading
from mesh_core.spi import on_signals
told = threading.Event()
def act():
    told.set()
with on_signals((signal.SIGTERM, signal.SIGUSR1), act):
    for turn in range(20_000):
        told.wait(1e-6)
        told.clear()
        if turn % 20 == 0:
            os.kill(os.getpid(), signal.SIGUSR1)
    told.clear()
    print("waits", flush=True)
    told.wait()
"""


def test_a_signal_is_handled_while_the_main_thread_holds_a_lock() -> None:
    command = [sys.executable, "-c", _WAITS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        process.terminate()
        assert process.wait(30) == 0


def test_the_previous_handlers_are_restored() -> None:
    before = signal.getsignal(signal.SIGUSR2)
    heard = threading.Event()
    with on_signals((signal.SIGUSR2,), heard.set):
        os.kill(os.getpid(), signal.SIGUSR2)
        assert heard.wait(30)
    assert signal.getsignal(signal.SIGUSR2) == before
    assert signal.set_wakeup_fd(-1) == -1
