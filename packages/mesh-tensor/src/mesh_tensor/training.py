"""Training that continues after the failure of processes and hosts; requires mesh-rdma."""

try:
    import mesh_rdma as _mesh_rdma  # noqa: F401 - the error says what to install.
except ModuleNotFoundError as _error:
    raise ModuleNotFoundError(
        "mesh_tensor.training keeps copies of checkpoints by mesh-rdma: "
        "pip install 'torchmesh-tensor[rdma]'",
        name=_error.name,
    ) from _error

from mesh_tensor._training.data_order import ElasticSampler as ElasticSampler
from mesh_tensor._training.disk_checkpoint import DiskCheckpoints as DiskCheckpoints
from mesh_tensor._training.errors import CheckpointCorrupt as CheckpointCorrupt
from mesh_tensor._training.errors import NoCheckpoint as NoCheckpoint
from mesh_tensor._training.errors import TrainingFailed as TrainingFailed
from mesh_tensor._training.fault_tolerant_training import (
    FaultTolerantTraining as FaultTolerantTraining,
)
from mesh_tensor._training.program import TrainingProgram as TrainingProgram
from mesh_tensor._training.recovery import Recovery as Recovery
