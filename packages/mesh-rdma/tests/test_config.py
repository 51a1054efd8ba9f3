"""Network settings come from the program, the environment and a file, in this order."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import mesh_rdma
from mesh_core import ConfigError
from mesh_rdma import RDMABuffer

#: A program that pickles a handle, and prints the addresses on which it listens then.
LISTENING = """
import os, pickle, sys
import mesh_rdma
from mesh_rdma import RDMABuffer
{first}
buffer = RDMABuffer(bytearray(8))
pickle.dumps(buffer)
inodes = {{os.readlink(f"/proc/self/fd/{{fd}}") for fd in os.listdir("/proc/self/fd")
          if os.path.exists(f"/proc/self/fd/{{fd}}")}}
for name in ("tcp", "tcp6"):
    with open(f"/proc/self/net/{{name}}") as table:
        for row in map(str.split, table.readlines()[1:]):
            if row[3] == "0A" and f"socket:[{{row[9]}}]" in inodes:
                print(row[1].split(":")[0])
"""

LOOPBACK = "0100007F"
ANY = ("0" * 32, "0" * 8)


def listening(first: str = "", **environment: str) -> list[str]:
    """Return the listen addresses, as listed by the system, after one handle was pickled."""
    script = LISTENING.format(first=first)
    env = {**os.environ, **environment}
    run = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False
    )
    return run.stdout.split() if run.returncode == 0 else [run.stderr.splitlines()[-1]]


def test_a_process_without_credentials_listens_on_loopback() -> None:
    assert listening() == [LOOPBACK]
    assert listening("import mesh_core; mesh_core.this_host().spawn_procs()") == [LOOPBACK]


def test_a_process_listens_on_all_addresses_once_its_job_has_credentials() -> None:
    first, then = listening(
        "import mesh_core\n"
        "pickle.dumps(RDMABuffer(bytearray(8)))\n"
        "mesh_core.this_host().spawn_procs()\n"
        "keys = mesh_core.Credentials.create()\n"
        "mesh_core.attach_to_workers(workers=['tcp://127.0.0.1:9'], credentials=keys)\n"
    )
    assert first == LOOPBACK
    assert then in ANY


def test_a_process_without_credentials_can_listen_on_all_addresses() -> None:
    (address,) = listening("mesh_rdma.configure(rdma_listen='all')")
    assert address in ANY


def test_a_process_can_listen_on_loopback_only() -> None:
    assert listening("mesh_rdma.configure(rdma_listen='loopback')") == [LOOPBACK]
    assert listening(MESH_RDMA_LISTEN="127.0.0.1") == [LOOPBACK]


def test_the_program_overrides_the_table_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mesh.toml"
    path.write_text('[rdma]\nrdma_listen = "loopback"\n')
    assert listening(MESH_CONFIG=str(path)) == [LOOPBACK]
    (address,) = listening("mesh_rdma.configure(rdma_listen='all')", MESH_CONFIG=str(path))
    assert address in ANY


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rdma_listen": "everywhere"}, "'auto', 'all', 'loopback' or an address"),
        ({"rdma_tcp_streams": 0}, "a number from 1 to 16"),
        ({"rdma_tcp_streams": 17}, "a number from 1 to 16"),
    ],
)
def test_an_invalid_value_is_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        mesh_rdma.configure(**settings)  # type: ignore[arg-type]


def test_the_error_names_the_invalid_environment_variable() -> None:
    (said,) = listening(MESH_RDMA_TCP_STREAMS="many")
    assert "(from MESH_RDMA_TCP_STREAMS)" in said


def test_the_listen_address_cannot_change_once_the_process_listens() -> None:
    pickle.dumps(RDMABuffer(bytearray(8)))
    with pytest.raises(ConfigError, match="already listens for other machines"):
        mesh_rdma.configure(rdma_listen="127.0.0.1")
    mesh_rdma.configure(rdma_tcp_streams=3)
