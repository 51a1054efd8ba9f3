"""Whether this machine has an RDMA device that the process can use."""

from __future__ import annotations

from mesh_rdma._plugins.registry import transport

__all__ = ["get_rdma_backend", "is_ibverbs_available", "is_rdma_available"]


def is_ibverbs_available() -> bool:
    """Return whether this process can use an RDMA NIC; `RDMABuffer.explain` gives the reason."""
    verbs = transport("verbs")
    return verbs is not None and verbs.transport is not None


def is_rdma_available() -> bool:
    """Same as `is_ibverbs_available`; without an RDMA NIC, buffers use TCP."""
    return is_ibverbs_available()


def get_rdma_backend() -> str:
    """Return how this process reaches other machines: `ibverbs` or `tcp`.

    A single buffer may use another transport: see `RDMABuffer.backend`.
    """
    return "ibverbs" if is_ibverbs_available() else "tcp"
