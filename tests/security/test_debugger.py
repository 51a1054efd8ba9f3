"""Another user tries to reach a debugger, which would allow running code as its user."""

from __future__ import annotations

import subprocess
import threading

from tests.security.users import User

# Makes a relay wait for an editor, and prints the data that reaches the debug session.
RELAY = """
import socket, threading
from mesh_telemetry._debug.editor import relay_editor

ours, session = socket.socketpair()

def show():
    while piece := session.recv(4096):
        print("session:", piece.decode(), flush=True)
        session.sendall(b"x")

threading.Thread(target=show, daemon=True).start()
relay_editor(ours, 0)
"""

EDITOR = """
import socket, struct, sys

editor = socket.create_connection(("127.0.0.1", int(sys.argv[1])), 30)
editor.sendall(sys.argv[2].encode())
if sys.argv[3:] == ["reset"]:
    editor.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
elif sys.argv[3:] == ["close"]:
    pass
else:
    try:
        print("closed" if editor.recv(1) == b"" else "answered")
    except ConnectionError:
        print("closed")
editor.close()
"""

PROGRAM = """
import sys
from mesh_core import Actor, endpoint, this_host
from mesh_telemetry import Telemetry

class Trainer(Actor):
    @endpoint
    def step(self) -> None:
        breakpoint()

with Telemetry() as telemetry, telemetry.serve():
    stepping = this_host().spawn_procs(name="team").spawn("trainers", Trainer).step.call_one()
    while not (sessions := telemetry.debug_sessions()):
        pass
    print(sessions[0]["id"], flush=True)
    sys.stdin.readline()
    print(len(telemetry.debug_sessions()), flush=True)
    telemetry.debug(sessions[0]["id"]).close()
    stepping.get()
"""

# Finds every named socket and every port of the owner, and tries to use it.
SNOOP = """
import glob, os, socket, sys

uid = sys.argv[1]
reached = []
for line in open("/proc/net/unix"):
    name = line.split()[-1]
    if "/" not in name and not name.startswith("@"):
        continue
    one = socket.socket(socket.AF_UNIX)
    one.settimeout(2.0)
    try:
        one.connect("\\0" + name[1:] if name.startswith("@") else name)
        reached.append(name)
    except OSError:
        pass
    one.close()
# Those of mesh-rdma have a check of their own.
print([name for name in reached if "mesh" in name and not name.startswith("@mesh-rdma")])
print(glob.glob(f"/dev/shm/mesh-*-{uid}*/*") + glob.glob(f"/tmp/mesh-*-{uid}*/*"))
"""


def port_of(relay: subprocess.Popen[str]) -> str:
    """Return the port on which the relay listens, from its output."""
    assert relay.stdout is not None
    for line in relay.stdout:
        if '"port"' in line:
            port = line.partition(":")[2].strip(" ,\n")
        if line == "}\n":
            return port
    raise AssertionError("the relay has ended")


def test_an_editor_of_another_user_is_refused(owner: User, other_user: User) -> None:
    with owner.start_python(RELAY, stderr=subprocess.PIPE) as relay:
        try:
            port = port_of(relay)
            assert other_user.run_python(EDITOR, port, "evil") == "closed\n"
            # The kernel reports no owner for a socket that is already closed.
            for _ in range(5):
                other_user.run_python(EDITOR, port, "evil", "reset")
                other_user.run_python(EDITOR, port, "evil", "close")
            assert owner.run_python(EDITOR, port, "good") == "answered\n"
            said, errors = relay.communicate(timeout=60)
        finally:
            relay.kill()
    assert said == "session: good\n"
    assert f"rejected a connection of user {other_user.uid}" in errors


def test_a_session_of_the_debugger_cannot_be_reached(owner: User, other_user: User) -> None:
    with owner.start_python(PROGRAM) as program:
        try:
            assert program.stdout is not None
            watchdog = threading.Timer(60, program.kill)
            watchdog.start()
            session = ""
            for line in program.stdout:
                session = line.strip()
                if len(session.split()) == 1 and session:
                    break
            watchdog.cancel()
            assert session
            assert other_user.run_python(SNOOP, str(owner.uid)) == "[]\n[]\n"
            said, _ = program.communicate("\n", timeout=60)
        finally:
            program.kill()
    assert "1" in said.splitlines()
