"""A program on a host that runs the steps of a test, sequentially or concurrently.

It is started as `python -m tests.hosts.cluster.stage`, with a socket to the test as standard input.
A step is a pickled function with its arguments, so the function must be defined in a module.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
import traceback
from multiprocessing.connection import Connection


def main() -> None:
    """Run steps until the test sends no more; then the program exits normally."""
    # SIGINT is ignored if the tests run in the background.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with Connection(_take_input()) as test:
        sending = threading.Lock()
        try:
            while (asked := test.recv()) is not None:
                # A step that never ends must not prevent the program from exiting.
                threading.Thread(target=_do, args=(test, sending, *asked), daemon=True).start()
        except EOFError:
            return


def _do(test: Connection, sending: threading.Lock, number: int, work: bytes) -> None:
    try:
        step, args = pickle.loads(work)
        done = pickle.dumps((number, True, step(*args)))
    except BaseException as error:
        done = _failed(number, error)
    with sending:
        try:
            test.send_bytes(done)
        except OSError:
            return  # The test has closed its end.


def _failed(number: int, error: BaseException) -> bytes:
    text = traceback.format_exc()
    try:
        pickle.loads(done := pickle.dumps((number, False, error, text)))
    except Exception:
        return pickle.dumps((number, False, RuntimeError(repr(error)), text))
    return done


def _take_input() -> int:
    """Prevent child processes from inheriting the socket as standard input."""
    socket = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return socket


if __name__ == "__main__":
    main()
