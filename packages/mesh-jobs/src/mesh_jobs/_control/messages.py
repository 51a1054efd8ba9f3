"""The messages of `mesh.control.v1`, made from the description that protoc wrote of control.proto.

No code is generated: that would tie mesh-jobs to few versions of protobuf. A test compiles
control.proto and compares.
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
    """Gives the pool of descriptions with ours in it; it is the one that reflection shows."""
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
    """Gives the class of a message, such as `ListRequest`."""
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
