"""Direct memory access between the processes of a job, without sending data in messages."""

from mesh_rdma._availability import get_rdma_backend as get_rdma_backend
from mesh_rdma._availability import is_ibverbs_available as is_ibverbs_available
from mesh_rdma._availability import is_rdma_available as is_rdma_available
from mesh_rdma._buffers.action import RDMAAction as RDMAAction
from mesh_rdma._buffers.arena import allocate as allocate
from mesh_rdma._buffers.buffer import RDMABuffer as RDMABuffer
from mesh_rdma._buffers.versioned_buffer import Version as Version
from mesh_rdma._buffers.versioned_buffer import VersionedBuffer as VersionedBuffer
from mesh_rdma._buffers.versioned_buffer import VersionedReader as VersionedReader
from mesh_rdma._collectives.replicas import Replicas as Replicas
from mesh_rdma._collectives.replicas import replicate as replicate
from mesh_rdma._collectives.spread import collect as collect
from mesh_rdma._collectives.spread import spread as spread
from mesh_rdma._config import configure as configure
from mesh_rdma._diagnosis.doctor import Diagnosis as Diagnosis
from mesh_rdma._diagnosis.doctor import doctor as doctor
from mesh_rdma._diagnosis.explain import explain as explain
from mesh_rdma._errors import RDMAAlignmentError as RDMAAlignmentError
from mesh_rdma._errors import RDMABoundsError as RDMABoundsError
from mesh_rdma._errors import RDMACancelled as RDMACancelled
from mesh_rdma._errors import RDMAError as RDMAError
from mesh_rdma._errors import RDMAIncomplete as RDMAIncomplete
from mesh_rdma._errors import RDMAPeerDied as RDMAPeerDied
from mesh_rdma._errors import RDMAReadOnlyError as RDMAReadOnlyError
from mesh_rdma._errors import RDMAReleased as RDMAReleased
from mesh_rdma._errors import RDMATimeout as RDMATimeout
from mesh_rdma._errors import RDMATransportError as RDMATransportError
from mesh_rdma._reshard.layout import Layout as Layout
from mesh_rdma._reshard.layout import Replicate as Replicate
from mesh_rdma._reshard.layout import Shard as Shard
from mesh_rdma._reshard.schedule import Schedule as Schedule
from mesh_rdma._reshard.schedule import join_schedules as join_schedules
from mesh_rdma._reshard.schedule import plan_reshard as plan_reshard


def __getattr__(name: str) -> object:
    if name == "__version__":
        # Few programs read it.
        from importlib.metadata import version  # noqa: PLC0415

        return version("torchmesh-rdma")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
