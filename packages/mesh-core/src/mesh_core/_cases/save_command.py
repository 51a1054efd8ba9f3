"""The command `save`, which makes a running program save a case."""

from __future__ import annotations

import re

from mesh_core._cases.errors import CaseError
from mesh_core._cases.escape import escape
from mesh_core._cases.program_socket import call_program, program_pids

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

__all__ = ["add_save_command"]

_ACTOR = re.compile(r"(.+?)(?:\[([0-9]{1,9})\])?")


def add_save_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    one = commands.add_parser(
        "save", help="make a running program of this user, on this machine, save a case"
    )
    one.add_argument("actor", metavar="MESH[RANK]", help="the actor; its mesh, if it has one rank")
    one.add_argument("--reason", default="requested by a command", help="why, in one line")
    one.add_argument("--pid", type=int, help="the program, if several are recorded")
    one.set_defaults(run=_save)


def _save(options: argparse.Namespace) -> list[str]:
    found = _ACTOR.fullmatch(options.actor)
    if found is None:
        raise CaseError(f"{options.actor!r} is not an actor: write MESH or MESH[RANK]")
    mesh, rank = found.groups()
    request = {
        "do": "save",
        "mesh": mesh,
        "rank": None if rank is None else int(rank),
        "reason": options.reason,
    }
    return [escape(str(call_program(_chosen(options.pid), request)["path"]))]


def _chosen(pid: int | None) -> int:
    found = program_pids()
    if pid is not None:
        if pid not in found:
            raise CaseError(f"no program with pid {pid} of this user is recorded on this machine")
        return pid
    if not found:
        raise CaseError(
            "no program of this user is recorded on this machine: run the command on the machine "
            "of the program, and call mesh_core.recording.record() there or set MESH_RECORD"
        )
    if len(found) > 1:
        raise CaseError(
            f"several programs are recorded: pass --pid with one of {', '.join(map(str, found))}"
        )
    return found[0]
