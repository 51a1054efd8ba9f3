"""Credentials are created, stored in private files, issued, rotated, and never printed."""

from __future__ import annotations

import copy
import os
import pickle
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import cloudpickle
import pytest

from mesh_core import MeshError, Unpicklable
from mesh_core._security.credentials import Credentials, CredentialsError

if TYPE_CHECKING:
    from pathlib import Path

LIMIT_S = 10.0
JOB = "0123456789abcdef0123456789abcdef"


def test_credentials_have_a_job_a_role_and_an_expiry() -> None:
    credentials = Credentials.create(job=JOB, valid_for=timedelta(hours=3))
    assert (credentials.job, credentials.role, credentials.name) == (
        JOB,
        "controller",
        "controller",
    )
    assert (credentials.generation, credentials.can_issue) == (1, True)
    left = credentials.expires_at - datetime.now(UTC)
    assert timedelta(hours=2, minutes=59) < left <= timedelta(hours=3)
    assert credentials.renew_at < credentials.expires_at - timedelta(minutes=50)


def test_each_job_has_a_unique_id() -> None:
    assert Credentials.create().job != Credentials.create().job


def test_credentials_are_valid_for_a_week_by_default() -> None:
    left = Credentials.create().expires_at - datetime.now(UTC)
    assert timedelta(days=6, hours=23) < left <= timedelta(days=7)


def test_saved_credentials_can_be_loaded(tmp_path: Path) -> None:
    credentials = Credentials.create(job=JOB)
    folder = tmp_path / "keys"
    credentials.save(folder)
    again = Credentials.load(str(folder))
    assert repr(again) == repr(credentials)
    assert again.issue(role="worker", name="host-1").job == JOB


def test_only_the_owner_can_access_the_files(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    Credentials.create().save(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {file.name for file in folder.iterdir()} == {"authority.pem", "identity.pem"}
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o600}


@pytest.mark.parametrize("name", ["identity.pem", "authority.pem"])
def test_a_key_that_others_can_read_is_refused(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "keys"
    Credentials.create().save(folder)
    (folder / name).chmod(0o644)
    with pytest.raises(CredentialsError, match=r"mode 0644\): chmod 600 it") as caught:
        Credentials.load(folder)
    assert isinstance(caught.value, MeshError)
    assert isinstance(caught.value, ValueError)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_key_of_another_user_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    Credentials.create().save(folder)
    os.chown(folder / "identity.pem", 12345, -1)
    with pytest.raises(CredentialsError, match="belongs to user 12345, and this process runs as"):
        Credentials.load(folder)


def test_the_error_names_a_missing_or_invalid_file(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match=r"identity\.pem cannot be read: No such file"):
        Credentials.load(tmp_path)
    folder = tmp_path / "keys"
    Credentials.create().save(folder)
    (folder / "identity.pem").write_text("nothing")
    with pytest.raises(
        CredentialsError, match=r"identity\.pem cannot be read, it contains no private"
    ):
        Credentials.load(folder)


def test_worker_credentials_cannot_issue_or_rotate(tmp_path: Path) -> None:
    worker = Credentials.create(job=JOB).issue(role="worker", name="host-1")
    assert (worker.job, worker.role, worker.name, worker.can_issue) == (
        JOB,
        "worker",
        "host-1",
        False,
    )
    worker.save(tmp_path / "worker")
    worker = Credentials.load(tmp_path / "worker")
    with pytest.raises(CredentialsError, match=r"worker \"host-1\" cannot sign for others"):
        worker.issue(role="worker", name="host-2")
    with pytest.raises(CredentialsError, match="cannot sign for others"):
        worker.rotate()


def test_worker_credentials_are_not_saved_next_to_an_authority(tmp_path: Path) -> None:
    credentials = Credentials.create()
    credentials.save(tmp_path / "keys")
    with pytest.raises(CredentialsError, match="holds the authority of a job"):
        credentials.issue(role="worker", name="host-1").save(tmp_path / "keys")


def test_credentials_of_two_jobs_in_one_folder_are_refused(tmp_path: Path) -> None:
    Credentials.create().save(tmp_path / "one")
    Credentials.create().save(tmp_path / "two")
    (tmp_path / "one" / "authority.pem").replace(tmp_path / "two" / "authority.pem")
    with pytest.raises(CredentialsError, match="two jobs: save each in a separate folder"):
        Credentials.load(tmp_path / "two")


def test_rotating_creates_the_next_generation_of_the_same_job(tmp_path: Path) -> None:
    old = Credentials.create(job=JOB, valid_for=3600)
    new = old.rotate(valid_for=timedelta(hours=2))
    assert (new.job, new.generation, new.name) == (JOB, 2, old.name)
    assert new.expires_at > old.expires_at
    assert (old.generation, old.can_issue) == (1, True)
    new.save(tmp_path)
    assert Credentials.load(tmp_path).rotate().generation == 3
    assert new.forget_previous().generation == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"job": "my job"}, '"my job" is not a job id: use 32 digits'),
        ({"job": JOB.upper()}, "is not a job id"),
        ({"valid_for": 1}, "cannot be valid for 1 s: use one minute to ten years"),
        ({"valid_for": -1}, "cannot be valid for -1 s"),
        ({"valid_for": float("nan")}, "cannot be valid for NaN s"),
        ({"name": "a b"}, '"a b" is not a name for a peer: use 1 to 64 letters'),
        ({"name": ""}, "is not a name for a peer"),
    ],
)
def test_invalid_arguments_are_refused(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(CredentialsError) as caught:
        Credentials.create(**arguments)  # type: ignore[arg-type]
    assert words in str(caught.value)


def test_an_unknown_role_is_refused() -> None:
    with pytest.raises(CredentialsError, match='"root" is not a role: use worker or controller'):
        Credentials.create().issue(role="root", name="a")  # type: ignore[arg-type]


def tls_context(me: Credentials, purpose: ssl.Purpose, folder: Path) -> ssl.SSLContext:
    """Return a TLS context of Python's `ssl` with these credentials."""
    key, chain, authorities = me.to_pem()
    files = [folder / f"{me.name}-{part}.pem" for part in ("chain", "key")]
    for file, content in zip(files, (chain, key), strict=True):
        file.write_bytes(content)
    context = ssl.create_default_context(purpose, cadata=authorities.decode())
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(*files)
    return context


def test_other_tls_stacks_accept_the_certificates_with_hostname_checks(tmp_path: Path) -> None:
    controller = Credentials.create()
    worker = controller.issue(role="worker", name="w0")
    server = tls_context(worker, ssl.Purpose.CLIENT_AUTH, tmp_path)
    client = tls_context(controller, ssl.Purpose.SERVER_AUTH, tmp_path)
    ours, theirs = socket.socketpair()
    with ours, theirs, ThreadPoolExecutor(1) as beside:
        accepted = beside.submit(server.wrap_socket, theirs, server_side=True)
        with (
            client.wrap_socket(ours, server_hostname="worker.mesh") as link,
            accepted.result(LIMIT_S) as other,
        ):
            link.sendall(b"hello")
            assert other.recv(5) == b"hello"
            names = dict(other.getpeercert()["subjectAltName"])  # type: ignore[index,arg-type]
    assert names["DNS"] == "controller.mesh"
    assert names["URI"].startswith(f"mesh://{controller.job}/controller/")


def test_no_key_is_ever_shown(tmp_path: Path) -> None:
    credentials = Credentials.create(job=JOB)
    credentials.save(tmp_path)
    key = (tmp_path / "identity.pem").read_text().splitlines()[1]
    shown = repr(credentials) + str(credentials) + repr(credentials._keys) + repr(dir(credentials))
    assert key not in shown
    assert "PRIVATE" not in shown
    assert repr(credentials).startswith(f"Credentials(job='{JOB}', role='controller', name=")


@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps, copy.deepcopy])
def test_credentials_cannot_be_pickled(dumps: object) -> None:
    assert callable(dumps)
    with pytest.raises(Unpicklable, match="contain keys and cannot be sent in messages: save"):
        dumps([Credentials.create()])


def test_credentials_are_immutable() -> None:
    credentials = Credentials.create()
    with pytest.raises(AttributeError, match="credentials are immutable"):
        credentials.job = JOB  # type: ignore[misc]
    with pytest.raises(TypeError, match=r"created by Credentials\.create or Credentials.load"):
        Credentials()


def test_the_command_creates_credentials_of_a_job_and_later_adds_workers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from mesh_core.credentials import main

    assert main([str(tmp_path / "keys"), "node7", "--days", "2"]) == 0
    controller = Credentials.load(tmp_path / "keys" / "controller")
    assert controller.can_issue
    assert main([str(tmp_path / "keys"), "node8"]) == 0
    others = [Credentials.load(tmp_path / "keys" / name) for name in ("node7", "node8")]
    assert {other.job for other in others} == {controller.job}
    assert [(other.role, other.can_issue) for other in others] == [("worker", False)] * 2
    assert main([str(tmp_path / "keys"), "no name"]) == 2
    assert "is not a name for a peer" in capsys.readouterr().err
