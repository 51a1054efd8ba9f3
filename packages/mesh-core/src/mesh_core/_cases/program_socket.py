"""The sockets on which recording programs of this user accept requests on this machine."""

from __future__ import annotations

import json
import os
import socket
import stat
import tempfile

from mesh_core._cases.errors import CaseError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["call_program", "program_pids", "read_line", "socket_folder", "socket_path"]

LINE_LEN_MAX = 1 << 20
_SUFFIX = ".sock"
_PREFIX = "mesh-record-"
# A path of a socket has at most 107 bytes.
_FOLDER_LEN_MAX = 80
_TIMEOUT_S = 120.0


def socket_folder() -> str:
    """Return the folder with the sockets of this user."""
    name = f"{_PREFIX}{os.geteuid()}"
    path = os.path.join(tempfile.gettempdir(), name)
    return path if len(os.fsencode(path)) <= _FOLDER_LEN_MAX else os.path.join("/tmp", name)


def socket_path(pid: int) -> str:
    """Return the path of the socket of a program."""
    return os.path.join(socket_folder(), f"{pid}{_SUFFIX}")


def program_pids() -> list[int]:
    """Return the pids of the programs of this user that record on this machine."""
    folder = socket_folder()
    try:
        found = os.lstat(folder)
        names = os.listdir(folder)
    except OSError:
        return []
    if found.st_uid != os.geteuid() or not stat.S_ISDIR(found.st_mode):
        # Another user has created this name.
        return []
    pids = sorted(int(name[: -len(_SUFFIX)]) for name in names if _is_socket(name))
    return [pid for pid in pids if _is_alive(pid)]


def call_program(pid: int, request: dict[str, Any]) -> dict[str, Any]:
    """Send a request to a program, and return its reply.

    Raises:
        CaseError: The program does not reply, or rejects the request.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_TIMEOUT_S)
            connection.connect(socket_path(pid))
            connection.sendall(json.dumps(request).encode() + b"\n")
            reply = json.loads(read_line(connection))
    except (OSError, ValueError) as error:
        raise CaseError(f"the program with pid {pid} does not reply: {error}") from None
    if type(reply) is not dict:
        raise CaseError(f"the program with pid {pid} sent an invalid reply")
    if "error" in reply:
        raise CaseError(str(reply["error"]))
    return reply


def read_line(connection: socket.socket) -> bytes:
    """Read a line.

    Raises:
        ValueError: The line is too long, or has no end.
    """
    line = bytearray()
    while not line.endswith(b"\n"):
        piece = connection.recv(4096)
        line += piece
        if not piece or len(line) > LINE_LEN_MAX:
            raise ValueError("the connection was closed")
    return bytes(line)


def _is_socket(name: str) -> bool:
    return name.endswith(_SUFFIX) and name[: -len(_SUFFIX)].isdecimal()


def _is_alive(pid: int) -> bool:
    """Return whether a program accepts connections; remove the socket of one that was killed."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_TIMEOUT_S)
            connection.connect(socket_path(pid))
    except ConnectionRefusedError:
        try:
            os.unlink(socket_path(pid))
        except OSError:
            pass  # Another command has removed it.
        return False
    except OSError:
        return False
    return True
