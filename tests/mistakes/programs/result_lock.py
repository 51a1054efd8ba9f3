"""A result that cannot be pickled."""

import threading

from mesh_core import Actor, endpoint, this_host


class Worker(Actor):
    def __init__(self) -> None:
        self.lock = threading.Lock()

    @endpoint
    def state(self) -> dict[str, object]:
        return {"lock": self.lock}


workers = this_host().spawn_procs({"gpus": 1}).spawn("workers", Worker)
workers.state.call_one().get()
