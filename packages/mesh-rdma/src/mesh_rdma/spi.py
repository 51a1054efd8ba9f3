"""The interface for authors of transports: the transport protocol and its probe.

A transport is a class that is registered by name in the entry-point group `mesh_rdma.transports`:

    [project.entry-points."mesh_rdma.transports"]
    mine = "my_package:MyTransport"

It is found in every process where the package is installed, which must be the case on both sides.
It is selected for a buffer if no built-in transport is better: see `Transport.level`.
`mesh_rdma.testing` contains the conformance tests that it must pass.
"""

from mesh_rdma._plugins.transport import Channel as Channel
from mesh_rdma._plugins.transport import Completion as Completion
from mesh_rdma._plugins.transport import CopyLease as CopyLease
from mesh_rdma._plugins.transport import Kind as Kind
from mesh_rdma._plugins.transport import Region as Region
from mesh_rdma._plugins.transport import Registration as Registration
from mesh_rdma._plugins.transport import Request as Request
from mesh_rdma._plugins.transport import Transport as Transport
