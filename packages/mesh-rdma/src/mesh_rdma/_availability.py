"""What this machine has for memory that goes over a network."""

from __future__ import annotations

from mesh_rdma._plugins.registry import transport

__all__ = ["get_rdma_backend", "is_ibverbs_available", "is_rdma_available"]


def is_ibverbs_available() -> bool:
    """Says whether this process can use a NIC by verbs; `RDMABuffer.explain` says why not."""
    verbs = transport("verbs")
    return verbs is not None and verbs.transport is not None


def is_rdma_available() -> bool:
    """As `is_ibverbs_available`: buffers work in either case, by TCP where no NIC is."""
    return is_ibverbs_available()


def get_rdma_backend() -> str:
    """Gives how this process reaches other machines: `ibverbs` or `tcp`.

    One buffer may be reached in another way: `RDMABuffer.backend` says by which.
    """
    return "ibverbs" if is_ibverbs_available() else "tcp"
