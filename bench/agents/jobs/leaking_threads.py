"""One of three processes becomes slow; it starts threads and never ends them."""

import threading

from bench.agents.broken_program import broken_program
from mesh_core import Actor, current_rank, endpoint, this_host


class Fetcher(Actor):
    def __init__(self) -> None:
        self.stop = threading.Event()

    @endpoint
    def fetch(self) -> None:
        if current_rank().rank == 2:
            threading.Thread(target=self.stop.wait, daemon=True).start()


with broken_program():
    fetchers = this_host().spawn_procs({"n": 3}, name="net").spawn("fetchers", Fetcher)
    for _ in range(40):
        fetchers.fetch.call().get()
