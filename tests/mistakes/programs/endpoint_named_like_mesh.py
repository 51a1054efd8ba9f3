"""An endpoint with the name of a method of every mesh."""

from mesh_core import Actor, endpoint, this_host


class Worker(Actor):
    @endpoint
    def stop(self) -> None:
        print("stopped")


this_host().spawn_procs({"gpus": 1}).spawn("workers", Worker)
