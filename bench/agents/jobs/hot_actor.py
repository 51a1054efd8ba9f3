"""Eight workers request each item from one actor; more workers do not help."""

import threading
from typing import Any

from bench.agents.broken_program import broken_program
from mesh_core import Actor, endpoint, this_host


class Settings(Actor):
    @endpoint
    def value(self, key: int) -> int:
        threading.Event().wait(0.2)
        return key


class Worker(Actor):
    @endpoint
    def work(self, settings: Any, items: int) -> int:
        return sum(settings.value.call_one(item).get() for item in range(items))


with broken_program():
    settings = this_host().spawn_procs(name="settings").spawn("settings", Settings)
    workers = this_host().spawn_procs({"n": 8}, name="team").spawn("workers", Worker)
    workers.work.call(settings, 10_000)
