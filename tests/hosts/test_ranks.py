"""Commands, scripts and ports on ranks of several hosts, through the public API of mesh-jobs."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

from tests.hosts.cluster import WorkerCluster

HEAD = """
import json, sys
from pathlib import Path
from mesh_core import Credentials, attach_to_workers
from mesh_jobs import PortForwarder, exec_command, run_spmd
addresses, keys, folder = json.loads(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
hosts = attach_to_workers(addresses, credentials=Credentials.load(keys))
"""

# Rank 0 listens on the address that all ranks received; the others connect to it.
MEET = """
import os, socket
rank, where = int(os.environ["RANK"]), (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == 0:
    with socket.create_server(("", where[1])) as listener:
        heard = []
        for _ in range(int(os.environ["WORLD_SIZE"]) - 1):
            connection, _ = listener.accept()
            with connection:
                heard.append(connection.makefile().readline().strip())
    print(where[0], *sorted(heard))
else:
    while True:
        try:
            connection = socket.create_connection(where)
            break
        except ConnectionRefusedError:
            continue
    with connection:
        connection.sendall(f"{rank}@{socket.gethostname()}\\n".encode())
"""


def run(cluster: WorkerCluster, folder: Path, program: str) -> str:
    """Run a program on the client with all hosts available, and return its output."""
    code = HEAD + textwrap.dedent(program)
    return cluster.client.python(code, json.dumps(cluster.addresses()), cluster.keys, str(folder))


def test_ranks_of_a_script_rendezvous_at_the_name_of_the_first_host(cluster: WorkerCluster) -> None:
    (cluster.folder / "meet.py").write_text(MEET)
    printed = run(
        cluster,
        cluster.folder,
        """
        for attempt in range(2):
            run = run_spmd(hosts, folder / "meet.py", per_host=2, output_dir=folder / "kept")
            assert run.get() == 0
        print((folder / "kept/mesh/hosts-0/procs-0/stdout.txt").read_text())
        """,
    )
    expected = "1@w0 2@w1 3@w1 4@w2 5@w2 6@w3 7@w3"
    assert f"w0 {expected}" in printed


def test_a_failure_names_its_host_and_all_hosts_start_another_round(cluster: WorkerCluster) -> None:
    failing = 'if (os.environ["TORCHELASTIC_RESTART_COUNT"], rank) == ("0", 5): raise SystemExit(3)'
    (cluster.folder / "flaky.py").write_text(MEET + failing + "\n")
    printed = run(
        cluster,
        cluster.folder,
        """
        sys.stderr = sys.stdout
        assert run_spmd(hosts, folder / "flaky.py", per_host=2, max_restarts=1).get() == 0
        """,
    )
    assert "rank 5 (mesh hosts=2 procs=1) failed first, with exit status 3 on w2" in printed
    of_the_last_round = printed.partition("restart 1 of 1, 0 left")[2]
    assert "w0 1@w0 2@w1 3@w1 4@w2 5@w2 6@w3 7@w3" in of_the_last_round


def test_output_of_each_host_is_kept_at_the_client(cluster: WorkerCluster) -> None:
    printed = run(
        cluster,
        cluster.folder,
        """
        assert exec_command(hosts, "hostname", output_dir=folder / "names").get() == 0
        files = sorted((folder / "names/mesh").glob("*/stdout.txt"))
        print(*[file.read_text().strip() for file in files])
        """,
    )
    assert "w0 w1 w2 w3" in printed


def test_a_port_of_one_host_is_reached_from_another_and_from_the_client(
    cluster: WorkerCluster,
) -> None:
    printed = run(
        cluster,
        cluster.folder,
        """
        import socket
        from mesh_core import Actor, endpoint

        class Server(Actor):
            @endpoint
            def serve(self) -> int:
                import threading
                self.listener = socket.create_server(("127.0.0.1", 0))
                threading.Thread(target=self.answer, daemon=True).start()
                return self.listener.getsockname()[1]

            def answer(self) -> None:
                while True:
                    connection, _ = self.listener.accept()
                    with connection:
                        connection.sendall(socket.gethostname().encode())

            @endpoint
            def ask(self, address: str) -> str:
                host, _, port = address.rpartition(":")
                with socket.create_connection((host, int(port))) as connection:
                    return connection.makefile().read()

        procs = hosts.spawn_procs()
        servers = procs.spawn("servers", Server)
        port = servers.slice(hosts=3).serve.call_one().get()
        last, second = procs.slice(hosts=3), procs.slice(hosts=1)
        with PortForwarder(last, port, src_proc_mesh=second) as forwarded:
            at = forwarded.addresses.values()[0]
            print("ranks", servers.slice(hosts=1).ask.call_one(at).get())
        with PortForwarder(last, port) as forwarded:
            host, _, port = forwarded.addresses.values()[0].rpartition(":")
            with socket.create_connection((host, int(port))) as connection:
                print("client", connection.makefile().read())
        """,
    )
    assert "ranks w3" in printed
    assert "client w3" in printed
