"""A reader, a parser and a writer; the program waits for the writer."""

import os
from typing import Any

from bench.agents.broken_program import broken_program
from mesh_core import Actor, endpoint, this_host


class Reader(Actor):
    def __init__(self) -> None:
        self.source, self.target = os.pipe()

    @endpoint
    def read(self) -> bytes:
        return os.read(self.source, 10)


class Parser(Actor):
    def __init__(self, reader: Any) -> None:
        self.reader = reader

    @endpoint
    def parse(self) -> str:
        return self.reader.read.call_one().get().decode()


class Writer(Actor):
    def __init__(self, parser: Any) -> None:
        self.parser = parser

    @endpoint
    def write(self) -> None:
        print(self.parser.parse.call_one().get())


with broken_program():
    procs = this_host().spawn_procs({"n": 3}, name="pipeline")
    reader = procs.slice(n=0).spawn("reader", Reader)
    parser = procs.slice(n=1).spawn("parser", Parser, reader)
    procs.slice(n=2).spawn("writer", Writer, parser).write.call_one()
