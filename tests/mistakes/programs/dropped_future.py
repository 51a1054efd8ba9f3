"""The result of a call is dropped, and with it an exception."""

from mesh_core import Actor, endpoint, this_host


class Worker(Actor):
    @endpoint
    def load(self, path: str) -> None:
        raise FileNotFoundError(path)

    @endpoint
    def ready(self) -> bool:
        return True


worker = this_host().spawn_procs().spawn("worker", Worker)
worker.load.call_one("weights.pt")
# The report of the exception may come before or after this reply.
worker.ready.call_one().get()
