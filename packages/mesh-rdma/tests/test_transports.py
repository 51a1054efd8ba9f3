"""The conformance tests for every built-in transport."""

from __future__ import annotations

import mesh_rdma
from mesh_rdma.testing import TransportConformance


class TestMemory(TransportConformance):
    transport = "memory"
    is_same_process = True


class TestArena(TransportConformance):
    transport = "arena"
    allocate = staticmethod(mesh_rdma.allocate)


class TestAttach(TransportConformance):
    transport = "attach"


class TestUnix(TransportConformance):
    transport = "unix"


class TestTcp(TransportConformance):
    transport = "tcp"
