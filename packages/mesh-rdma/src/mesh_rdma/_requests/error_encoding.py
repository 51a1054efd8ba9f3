"""The encoding of errors that one process sends to another."""

from __future__ import annotations

from mesh_rdma import _errors
from mesh_rdma._errors import RDMAError

__all__ = ["decode_error", "encode_error"]

_LEN_MAX = 4096


def encode_error(error: BaseException) -> bytes:
    """Encode the class and the message of an error."""
    kind = type(error).__name__ if isinstance(error, RDMAError) else "RDMAError"
    words = f"{type(error).__name__}: {error}"
    if isinstance(error, RDMAError):
        # Only the original message is sent: `str` may add text that the receiver adds again.
        words = str(error.args[0]) if error.args else str(error)
    return f"{kind}\n{words}".encode()[:_LEN_MAX]


def decode_error(data: bytes) -> RDMAError:
    """Decode an error; an unknown class becomes an `RDMAError`."""
    kind, _, words = data.decode(errors="replace").partition("\n")
    found = getattr(_errors, kind, None) if kind in _errors.__all__ else None
    if isinstance(found, type) and issubclass(found, RDMAError):
        return found(words)
    return RDMAError(words)
