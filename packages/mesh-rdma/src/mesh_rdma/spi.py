"""What a new way to move memory implements: the transport protocol and its probe.

A transport is a class in the entry-point group `mesh_rdma.transports`, under its name:

    [project.entry-points."mesh_rdma.transports"]
    mine = "my_package:MyTransport"

It is found by whoever has the package installed, on both sides, and taken for a buffer when no
built-in way is better: see `Transport.level`. `mesh_rdma.testing` has the tests that it must pass.
"""

from mesh_rdma._plugins.transport import Channel as Channel
from mesh_rdma._plugins.transport import Claim as Claim
from mesh_rdma._plugins.transport import Finished as Finished
from mesh_rdma._plugins.transport import Kind as Kind
from mesh_rdma._plugins.transport import Region as Region
from mesh_rdma._plugins.transport import Registration as Registration
from mesh_rdma._plugins.transport import Request as Request
from mesh_rdma._plugins.transport import Transport as Transport
