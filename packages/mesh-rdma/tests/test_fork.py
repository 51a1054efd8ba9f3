"""Forked children of a process that shares memory, and the exit of such a process."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from mesh_rdma import RDMABuffer, RDMAPeerDied

PROGRAMS = Path(__file__).with_name("forking.py")


def start(program: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(PROGRAMS), program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(program: str, *lines: str) -> None:
    """Run a program that prints only that it is done."""
    with start(program) as process:
        out, error = process.communicate("".join(f"{line}\n" for line in lines), timeout=40)
    assert (out, error, process.returncode) == ("done\n", "", 0)


@pytest.mark.parametrize("transport", ["attach", "unix", "tcp"])
def test_a_death_is_detected_while_a_forked_child_lives(transport: str) -> None:
    """The child holds no connection of its parent."""
    with start("owner_with_a_child") as owner:
        assert owner.stdin is not None
        assert owner.stdout is not None
        buffer: RDMABuffer = pickle.loads(bytes.fromhex(owner.stdout.readline()))
        buffer = buffer.via(transport)
        here = bytearray(4000)
        buffer.read_into(here).get()
        owner.stdin.write("connected\n")
        owner.stdin.flush()
        child = int(owner.stdout.readline())
        try:
            errors: list[BaseException] = []
            copying = threading.Thread(target=lambda: errors.append(error_of(buffer)))
            copying.start()
            owner.kill()
            copying.join()
            assert [type(error) for error in errors] == [RDMAPeerDied]
        finally:
            os.kill(child, signal.SIGKILL)


def error_of(buffer: RDMABuffer) -> BaseException:
    """Read until a read fails."""
    here = bytearray(4000)
    while True:
        try:
            buffer.read_into(here).get()
        except Exception as error:
            return error


def test_objects_that_a_child_drops_remain_valid_in_its_parent() -> None:
    run("child_lets_go")


def test_a_child_can_use_inherited_objects() -> None:
    buffer = RDMABuffer(bytearray(b"far!" * 1000))
    run("child_uses_what_it_inherits", pickle.dumps(buffer).hex())


def test_children_of_multiprocessing() -> None:
    run("multiprocessing_children")


def test_started_programs_inherit_no_descriptor() -> None:
    buffer = RDMABuffer(bytearray(b"far!" * 1000))
    run("started_programs_get_nothing", pickle.dumps(buffer).hex())


@pytest.mark.parametrize("attempt", range(4))
def test_a_process_exits_cleanly_during_transfers(attempt: int) -> None:
    buffer = RDMABuffer(bytearray(4 << 20))
    run("ends_in_the_middle", pickle.dumps(buffer).hex())
