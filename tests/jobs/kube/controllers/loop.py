"""The thread in which all controllers run a step after every change."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Sequence
from typing import Protocol

from tests.jobs.kube.api.refusal import Refusal
from tests.jobs.kube.api.store import Store

#: Interval of steps without a change, because controllers also depend on time.
TICK_S = 0.2


class Controller(Protocol):
    """Moves the actual state of the cluster towards the desired state."""

    def step(self) -> None:
        """Read the whole state and do everything that is currently necessary."""
        ...


class Loop:
    """Runs controllers until it is stopped."""

    def __init__(self, store: Store, controllers: Sequence[Controller]) -> None:
        self._store = store
        self._controllers = controllers
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="controllers", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            version = self._store.version
            for controller in self._controllers:
                try:
                    controller.step()
                except Refusal:
                    # Another writer was faster; the next step uses the new state.
                    continue
                except Exception:
                    traceback.print_exc()
            self._store.wait(version, TICK_S)
