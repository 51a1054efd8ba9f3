"""Versions of both sides are compared when a worker joins a job."""

from __future__ import annotations

import gc
import logging
import sys
import types
import warnings

import pytest
from workers import WorkerProcess

from mesh_core import HostDied, attach_to_workers, configured
from mesh_core._hosts import attach_request, joining
from mesh_core._hosts.attach_request import AttachReply, AttachRequest
from mesh_core._hosts.versions import differences, refusal, versions_here

LIMIT_S = 30
HERE = ".".join(map(str, sys.version_info[:3]))
OTHER = {"python": "3.8.1", "torchmesh-core": "0.1.0", "pytest": "1.0", "no-such-package": "1.0"}


def test_versions_of_a_program_include_its_imported_packages() -> None:
    found = versions_here()
    assert found["python"] == HERE
    assert found["pytest"] == pytest.__version__
    assert found["torchmesh-core"]


def test_a_module_whose_version_is_deprecated_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def warn(name: str) -> str:
        warnings.warn(f"{name} is deprecated", DeprecationWarning, stacklevel=2)
        return "8.2"

    module = types.ModuleType("clack")
    monkeypatch.setattr(module, "__getattr__", warn, raising=False)
    monkeypatch.setitem(sys.modules, "clack", module)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "clack" not in versions_here()


def test_versions_are_found_while_modules_are_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    # The collector runs code in the middle of an iteration, as another thread does that imports.
    def add_modules(phase: str, _: object) -> None:
        name = f"added_{phase}_{len(sys.modules)}"
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))

    # Python reuses the memory of released pairs without a collection, so none may be left.
    pairs = [(number, number) for number in range(10_000)]
    before = gc.get_threshold()
    gc.callbacks.append(add_modules)
    gc.set_threshold(1)
    try:
        assert versions_here()["python"] == HERE
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(add_modules)
    assert pairs


def test_another_feature_version_of_python_is_refused_and_both_are_named() -> None:
    why = refusal(OTHER)
    assert why is not None
    assert f"the program runs Python 3.8.1, and this worker Python {HERE}" in why
    assert refusal({"python": HERE}) is None
    assert refusal({}) is None


def test_differing_package_versions_are_described() -> None:
    assert differences(OTHER) == [f"pytest {pytest.__version__} instead of 1.0"]
    assert differences(versions_here()) == []


def test_builds_of_one_version_do_not_differ() -> None:
    assert differences({"pytest": f"{pytest.__version__}+cu130"}) == []


def test_versions_survive_encoding() -> None:
    config: dict[str, object] = {}
    request = AttachRequest(
        b"j" * 16, b"t" * 32, 3, "someone", 10.0, config, [], versions={"python": "3.11.1"}
    )
    assert AttachRequest.decode(request.encode()).versions == {"python": "3.11.1"}
    reply = AttachReply.decode(AttachReply("host", "id", ["a 1 instead of 2"]).encode().encode())
    assert (reply.host_name, reply.worker_id) == ("host", "id")
    assert reply.differences == ["a 1 instead of 2"]


def test_a_worker_with_a_different_python_version_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attach_request, "versions_here", lambda: OTHER)
    with WorkerProcess() as worker, configured(attach_timeout_s=10 * LIMIT_S):
        hosts = attach_to_workers([worker.address])
        with pytest.raises(HostDied, match=r"the program runs Python 3\.8\.1"):
            hosts.initialized.get(timeout=LIMIT_S)
        with configured(check_versions=False):
            hosts = attach_to_workers([worker.address])
            hosts.initialized.get(timeout=LIMIT_S)
        hosts.detach().get(timeout=LIMIT_S)


def test_a_different_package_version_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(joining, "_warned", set())
    monkeypatch.setattr(attach_request, "versions_here", lambda: {"python": HERE, "pytest": "1.0"})
    with WorkerProcess() as first, WorkerProcess() as second, caplog.at_level(logging.WARNING):
        hosts = attach_to_workers([first.address, second.address])
        hosts.initialized.get(timeout=LIMIT_S)
        hosts.detach().get(timeout=LIMIT_S)
    told = [one.getMessage() for one in caplog.records if "instead of" in one.getMessage()]
    assert len(told) == 1
    assert f"has pytest {pytest.__version__} instead of 1.0" in told[0]
