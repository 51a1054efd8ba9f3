"""Ctrl-C while the program waits for a slow endpoint."""

import os
import signal
import threading
import time

from mesh_core import Actor, endpoint, this_host


class Worker(Actor):
    @endpoint
    def train(self) -> None:
        print("training", flush=True)
        time.sleep(60)


workers = this_host().spawn_procs({"gpus": 1}).spawn("workers", Worker)
workers.initialized.get()
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
workers.train.call_one().get()
