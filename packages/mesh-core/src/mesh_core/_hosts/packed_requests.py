"""Start requests of processes as bytes, for the worker to which their host moves."""

from __future__ import annotations

import pickle
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from mesh_core._meshes.start_request import StartRequest

__all__ = ["pack_requests", "unpack_requests"]


def pack_requests(requests: Mapping[int, StartRequest]) -> bytes:
    """Return the start requests of processes, by slot, as a compressed pickle."""
    return zlib.compress(pickle.dumps(dict(requests), 5))


def unpack_requests(packed: bytes) -> dict[int, StartRequest]:
    """Return the requests that `pack_requests` has packed in an authenticated program."""
    requests: dict[int, StartRequest] = pickle.loads(zlib.decompress(packed))
    return requests
