"""A function that uses a socket."""

import socket
from collections.abc import Callable

from mesh_core import Actor, endpoint, this_host

connection = socket.socket()


class Worker(Actor):
    @endpoint
    def run(self, function: Callable[[], None]) -> None:
        function()


workers = this_host().spawn_procs({"gpus": 1}).spawn("workers", Worker)
workers.run.call(lambda: connection.close()).get()
