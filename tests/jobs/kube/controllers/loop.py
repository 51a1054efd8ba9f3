"""The thread in which all controllers do their steps, whenever something has changed."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Sequence
from typing import Protocol

from tests.jobs.kube.api.refusal import Refusal
from tests.jobs.kube.api.store import Store

#: Time passes for controllers too: they look again after so long.
TICK_S = 0.2


class Controller(Protocol):
    """Brings what is there closer to what is wanted."""

    def step(self) -> None:
        """Looks at everything anew, and does what is to be done now."""
        ...


class Loop:
    """Runs controllers until it is told to end."""

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
                    # Someone else was faster; the next look is at what he has made of it.
                    continue
                except Exception:
                    traceback.print_exc()
            self._store.wait(version, TICK_S)
