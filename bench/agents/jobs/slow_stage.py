"""A pipeline of three actors is slower than each of its parts should be."""

import time
from typing import Any

from bench.agents.broken_program import broken_program
from mesh_core import Actor, endpoint, this_host


class Stage(Actor):
    def __init__(self, pause_s: float) -> None:
        self.pause_s = pause_s

    @endpoint
    def tokenize(self, text: str) -> str:
        return text

    @endpoint
    def embed(self, text: str) -> str:
        time.sleep(self.pause_s)
        return text

    @endpoint
    def store(self, text: str) -> str:
        return text


with broken_program():
    procs = this_host().spawn_procs({"n": 3}, name="pipeline")
    parts: list[Any] = [procs.slice(n=n).spawn(f"part{n}", Stage, 0.04) for n in range(3)]
    for number in range(10):
        text = parts[0].tokenize.call_one(str(number)).get()
        text = parts[1].embed.call_one(text).get()
        parts[2].store.call_one(text).get()
