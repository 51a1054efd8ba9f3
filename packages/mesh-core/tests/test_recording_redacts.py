"""A program that is recorded with redacted fields: its case, and the replay of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mesh_core import case
from mesh_core._cases.case_file import read_case

SECRET = "hunter2"
LIMIT_S = 100.0
PROGRAM = """
import os
import sys
from functools import wraps
from mesh_core import Actor, Port, context, endpoint, this_host
from mesh_core.recording import record

def traced(function):
    @wraps(function)
    def call(*args, **kwargs):
        return function(*args, **kwargs)
    return call

class Server(Actor):
    def __init__(self, password):
        self.password = password

    @endpoint
    @traced
    def check(self, user, password):
        return {"user": user, "password": password, "is_right": password == self.password}

    @endpoint(explicit_response_port=True)
    def later(self, port: Port, password):
        port.send(len(password))

class Client(Actor):
    def __init__(self, server, *, config):
        self.server = server
        self.password = config["password"]
        self.variable = context().getenv("SERVICE_LOGIN")

    @endpoint
    def log_in(self, user, password=None):
        found = self.server.check.call_one(user, password or self.password).get()
        if not found["is_right"]:
            raise PermissionError(user)
        return found

    @endpoint
    def log_in_as(self, user, password):
        found = self.server.check.call_one(user, password).get()
        return {"password": context().getenv("SERVICE_LOGIN"), "user": found["user"]}

    @endpoint
    def fail(self):
        raise ValueError("it failed")

    @endpoint
    def use(self, password):
        return password.upper()

if __name__ == "__main__":
    secret = os.environ["SERVICE_LOGIN"]
    record(folder=sys.argv[1], redact=["password", "service_*"])
    server = this_host().spawn_procs().spawn("server", Server, secret)
    config = {"password": secret, "size": 3}
    client = this_host().spawn_procs().spawn("client", Client, server, config=config)
    print(server.later.call_one(secret).get())
    print(client.log_in_as.call_one("bob", secret).get()["password"] == secret)
    print(server.later.call_one(password=secret).get())
    if sys.argv[2:] == ["use"]:
        client.use.call_one(secret).get()
    try:
        client.fail.call_one().get()
    except ValueError:
        print("failed")
"""


def saved(folder: Path, *words: str) -> Path:
    """Run the program, and return its case."""
    script = folder / "program.py"
    script.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(script), str(folder / "cases"), *words],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        cwd=folder,
        env={**os.environ, "SERVICE_LOGIN": SECRET},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["7", "True", "7", "failed"], done.stderr
    (found,) = (folder / "cases").iterdir()
    return found


def test_a_case_has_no_redacted_value_and_can_be_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path)
    assert case.main(["show", str(path), "--all", "--json"]) == 0
    assert case.main(["show", str(path), "--all"]) == 0
    shown = capsys.readouterr().out
    assert SECRET not in shown
    assert "Server(<redacted>)" in shown
    assert "config={'password': <redacted>, 'size': 3}" in shown
    assert "log_in_as('bob', <redacted>)" in shown
    assert "calls server.check('bob', <redacted>)" in shown
    assert "replied {'user': 'bob', 'password': <redacted>, 'is_right': True}" in shown
    assert not any(SECRET.encode() in one for one in payloads(path))
    done = replay(path)
    assert done.returncode == 1, done.stderr
    assert "client[0] fails as recorded" in done.stderr


def replay(path: Path) -> subprocess.CompletedProcess[str]:
    """Replay a case in a separate process."""
    command = [sys.executable, "-m", "mesh_core.replay", str(path), "--trust"]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def payloads(path: Path) -> list[bytes]:
    """Return all payloads and fields of a case."""
    entries = [one for actor in read_case(path).actors for one in actor.entries]
    assert len(entries) > 10
    return [
        *(one for entry in entries for one in entry.payloads if isinstance(one, bytes)),
        *(repr(entry.fields).encode() for entry in entries),
    ]


def test_a_replay_that_uses_a_redacted_value_names_its_field(tmp_path: Path) -> None:
    path = saved(tmp_path, "use")
    done = replay(path)
    assert done.returncode == 3, done.stderr
    assert "ValueRedacted: the value of 'password' is not in the recording" in done.stderr
