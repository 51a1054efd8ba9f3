"""A program that pickles one handle of each kind, for another program to unpickle."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

from mesh_core import Actor, Channel, Port, endpoint, this_host
from mesh_core.services import Service


class Ledger(Actor):
    """An account, which only handles of the job that created it may withdraw from."""

    def __init__(self) -> None:
        self.balance = 100

    @endpoint
    def withdraw(self, amount: int) -> int:
        self.balance -= amount
        return self.balance

    @endpoint(explicit_response_port=True)
    def pickled_port(self, port: Port[bytes]) -> None:
        pickled = pickle.dumps(port)
        pickle.loads(pickled).send(pickled)


def handles() -> dict[str, Any]:
    """Spawn one mesh of each kind and return handles of them."""
    procs = this_host().spawn_procs({"gpus": 2}, name="workers")
    ledgers = procs.spawn("ledgers", Ledger)
    service = Service.options().spawn("bank", Ledger)
    port, _ = Channel[int].open()
    return {
        "host mesh": this_host(),
        "proc mesh": procs,
        "slice of a proc mesh": procs.slice(gpus=1),
        "actor mesh": ledgers,
        "slice of an actor mesh": ledgers.slice(gpus=1),
        "endpoint": ledgers.withdraw,
        "port": port,
        "service": service,
        "service handle": service.handle,
    }


if __name__ == "__main__":
    import handle_maker  # Not as __main__: the other program finds the class under this name.

    made = handle_maker.handles()
    ledger = made["slice of an actor mesh"]
    pickled = {name: pickle.dumps(handle) for name, handle in made.items()}
    pickled["answer port"] = ledger.pickled_port.call_one().get()
    Path(sys.argv[1]).write_bytes(pickle.dumps(pickled))
