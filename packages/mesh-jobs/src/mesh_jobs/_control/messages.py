"""The messages of `mesh.control.v1`, created from the descriptor set of control.proto.

protoc compiles the descriptor set. No code is generated, because generated code would tie mesh-jobs
to few versions of protobuf. A test compiles control.proto and compares the result.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

__all__ = ["FILE", "SERVICE", "message"]

FILE = "mesh/control/v1/control.proto"
SERVICE = "mesh.control.v1.Control"
_PACKAGE = "mesh.control.v1"


def _load() -> Any:
    """Add our descriptors to the default pool, which reflection uses, and return the pool."""
    pool: Any = descriptor_pool.Default()  # type: ignore[no-untyped-call, unused-ignore]
    folder = files(__package__ or "mesh_jobs._control")
    described = descriptor_pb2.FileDescriptorSet.FromString(
        folder.joinpath(FILE.replace(".proto", ".binpb")).read_bytes()
    )
    for one in described.file:
        pool.AddSerializedFile(one.SerializeToString())
    return pool


_pool = _load()


def message(name: str) -> Any:
    """Return the class of a message, such as `ListRequest`."""
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
