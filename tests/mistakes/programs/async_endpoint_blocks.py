"""An async endpoint that blocks the event loop of its process."""

import subprocess

from mesh_core import Actor, endpoint, this_host


class Worker(Actor):
    @endpoint
    async def load(self) -> str:
        subprocess.run(["sleep", "3"], check=True)
        return "loaded"


workers = this_host().spawn_procs({"gpus": 1}).spawn("workers", Worker)
print(workers.load.call_one().get())
