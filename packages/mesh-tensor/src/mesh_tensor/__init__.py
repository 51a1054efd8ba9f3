"""Distributed tensors: plain PyTorch programs that run on every process of a mesh."""

from mesh_tensor._collectives.collectives import reduce as reduce
from mesh_tensor._collectives.collectives import reduce_ as reduce_
from mesh_tensor._collectives.collectives import to_mesh as to_mesh
from mesh_tensor._collectives.collectives import vary as vary
from mesh_tensor._errors import BorrowedMutably as BorrowedMutably
from mesh_tensor._errors import BorrowEnded as BorrowEnded
from mesh_tensor._errors import BorrowError as BorrowError
from mesh_tensor._errors import DataDependentError as DataDependentError
from mesh_tensor._errors import LocalTensorError as LocalTensorError
from mesh_tensor._errors import MutatingBorrow as MutatingBorrow
from mesh_tensor._errors import NoGradient as NoGradient
from mesh_tensor._errors import NoValues as NoValues
from mesh_tensor._errors import OpFailed as OpFailed
from mesh_tensor._errors import PipeEnded as PipeEnded
from mesh_tensor._errors import RanksDisagree as RanksDisagree
from mesh_tensor._errors import TensorError as TensorError
from mesh_tensor._errors import TraceError as TraceError
from mesh_tensor._errors import UnsupportedOp as UnsupportedOp
from mesh_tensor._errors import WrongMesh as WrongMesh
from mesh_tensor._errors import WrongStream as WrongStream
from mesh_tensor._gradients.generator import grad_generator as grad_generator
from mesh_tensor._mesh.activation import get_active_mesh as get_active_mesh
from mesh_tensor._mesh.activation import no_mesh as no_mesh
from mesh_tensor._mesh.device_mesh import DeviceMesh as DeviceMesh
from mesh_tensor._mesh.process_group import RemoteProcessGroup as RemoteProcessGroup
from mesh_tensor._random import random as random
from mesh_tensor._remote.autograd import remote_autograd_function as remote_autograd_function
from mesh_tensor._remote.function import RemoteFunction as RemoteFunction
from mesh_tensor._remote.function import call_on_shard_and_fetch as call_on_shard_and_fetch
from mesh_tensor._remote.function import remote as remote
from mesh_tensor._remote.module import RemoteModule as RemoteModule
from mesh_tensor._remote.module import RemoteOptimizer as RemoteOptimizer
from mesh_tensor._remote.opaque_object import OpaqueObject as OpaqueObject
from mesh_tensor._remote.opaque_object import opaque_method as opaque_method
from mesh_tensor._remote.opaque_ref import OpaqueRef as OpaqueRef
from mesh_tensor._remote.pipe import Pipe as Pipe
from mesh_tensor._remote.pipe import create_pipe as create_pipe
from mesh_tensor._remote.pipe_endpoint import PipeEnd as PipeEnd
from mesh_tensor._simulator.cost_model import CostModel as CostModel
from mesh_tensor._simulator.cost_model import DeviceModel as DeviceModel
from mesh_tensor._simulator.cost_model import Link as Link
from mesh_tensor._simulator.cost_model import ProcessGroupShape as ProcessGroupShape
from mesh_tensor._simulator.cost_model import Work as Work
from mesh_tensor._simulator.op_times import OpTimes as OpTimes
from mesh_tensor._simulator.report import DeviceUse as DeviceUse
from mesh_tensor._simulator.report import LineCost as LineCost
from mesh_tensor._simulator.report import SimulationReport as SimulationReport
from mesh_tensor._simulator.simulator import SimulatedPart as SimulatedPart
from mesh_tensor._simulator.simulator import Simulator as Simulator
from mesh_tensor._streams.borrow import Borrow as Borrow
from mesh_tensor._streams.stream import Stream as Stream
from mesh_tensor._streams.stream import get_active_stream as get_active_stream
from mesh_tensor._tensor.tensor import Tensor as Tensor
from mesh_tensor._trace.traced_function import Traced as Traced
from mesh_tensor._trace.traced_function import trace as trace
from mesh_tensor._transfers.fetch import fetch_shard as fetch_shard
from mesh_tensor._transfers.fetch import inspect as inspect
from mesh_tensor._transfers.fetch import show as show
from mesh_tensor._transfers.placement import put as put
from mesh_tensor._transfers.placement import shard as shard


def __getattr__(name: str) -> object:
    if name == "__version__":
        # Few programs read the version.
        from importlib.metadata import version  # noqa: PLC0415

        return version("torchmesh-tensor")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
