"""One attached host of a program: its current machine and its previous machines."""

from __future__ import annotations

import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh_core._configuration.config import Config
    from mesh_core._core import Keys
    from mesh_core._hosts.address import Address
    from mesh_core._hosts.route import Route

__all__ = ["Place"]


class Place:
    """One attached host.

    Attributes:
        host: Its number in the job.
        address: The address of the current or last worker.
        gateway: The address of the worker that forwards connections to it; None for none.
        keys: The keys with which both sides authenticate.
        config: The configuration at the time of the attachment.
        epoch: The number of machines that were tried before the current one.
        tried_count: The epoch of the last machine that was tried.
        joined_epoch: The epoch of the machine that was the last to join.
        route: The route to the host; None before it has joined and after its death.
        exit_report: The encoded failure if it is dead; None otherwise.
        has_left: Whether it was dismissed normally.
        host_name: The host name of the machine that joined last.
        orphan_grace_s: The orphan grace period of the host in seconds.
        problem: Why the last request to the worker failed; None if none has failed.
        is_observer: Whether the job has an additional session on the worker.
        worker_id: The id of the current worker. Before it has joined, the id of the only worker
            that may join; empty for any.
        unwanted: If the host was dismissed before it had joined: whether it is then shut down
            (True) or only detached (False).
    """

    __slots__ = (
        "address",
        "config",
        "epoch",
        "exit_report",
        "gateway",
        "has_left",
        "host",
        "host_name",
        "is_observer",
        "joined_epoch",
        "keys",
        "orphan_grace_s",
        "problem",
        "replacing",
        "route",
        "tried_count",
        "unwanted",
        "worker_id",
    )

    def __init__(
        self,
        host: int,
        address: Address,
        gateway: Address | None,
        keys: Keys,
        config: Config,
        orphan_grace_s: float = 0.0,
        epoch: int = 0,
        *,
        is_observer: bool = False,
    ) -> None:
        self.host: int = host
        self.is_observer: bool = is_observer
        self.unwanted: bool | None = None
        self.worker_id: str = ""
        self.orphan_grace_s: float = orphan_grace_s
        self.address: Address = address
        self.gateway: Address | None = None if gateway == address else gateway
        self.keys: Keys = keys
        self.config: Config = config
        self.epoch: int = epoch
        self.tried_count: int = epoch
        self.joined_epoch: int = 0
        self.route: Route | None = None
        self.exit_report: bytes | None = None
        self.has_left: bool = False
        self.host_name: str = str(address)
        self.problem: str | None = None
        # Allows one replacement at a time.
        self.replacing: threading.Lock = threading.Lock()

    def take_machine_of(self, successor: Place) -> None:
        """Continue on the machine of another description of this host, with its epoch."""
        self.address, self.gateway = successor.address, successor.gateway
        self.epoch, self.worker_id = successor.epoch, successor.worker_id

    @property
    def route_keys(self) -> Keys | None:
        """The keys for connections to this host only; None for the keys of the program."""
        return self.keys if self.keys.is_local else None
