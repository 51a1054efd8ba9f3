"""Continuous calls, from several threads to each host."""

from __future__ import annotations

import threading
import time

from tests.hosts.chaos.ledger import Ledger
from tests.hosts.chaos.recovery import Recovery
from tests.hosts.chaos.workload import CallFailed, Workload
from tests.hosts.world import Host

#: Pause of a caller after a failure: a refused connection fails immediately, again and again.
AFTER_FAILURE_S = 0.01


class Load:
    """A set of threads, each of which makes calls sequentially."""

    def __init__(self, workload: Workload, ledger: Ledger, recovery: Recovery) -> None:
        """Create a load without threads, which reports to the ledger and to the recovery times."""
        self._workload = workload
        self._ledger = ledger
        self._recovery = recovery
        self._ending = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, host: Host, concurrency: int) -> None:
        """Start threads that call a host, one for each concurrent call."""
        for number in range(concurrency):
            # A call that hangs must not prevent the program from exiting.
            thread = threading.Thread(
                target=self._run, args=(host,), name=f"{host.name}/{number}", daemon=True
            )
            thread.start()
            self._threads.append(thread)

    def stop(self, limit_s: float) -> None:
        """Stop making calls, and wait for pending calls for at most `limit_s` in total."""
        self._ending.set()
        until = time.monotonic() + limit_s
        for thread in self._threads:
            thread.join(max(until - time.monotonic(), 0))

    def _run(self, host: Host) -> None:
        while not self._ending.is_set():
            number, sent = self._ledger.send(), time.monotonic()
            try:
                self._workload.call(number, host)
            except CallFailed as failed:
                self._ledger.fail(number, str(failed), is_typed=True)
                self._ending.wait(AFTER_FAILURE_S)
            except Exception as error:
                self._ledger.fail(number, repr(error), is_typed=False)
                self._ending.wait(AFTER_FAILURE_S)
            else:
                self._ledger.answer(number)
                self._recovery.answered(host.name, sent)
