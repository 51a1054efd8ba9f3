"""The specification of a job."""

from __future__ import annotations

from typing import Any

import pytest

from mesh_core import ConfigError
from mesh_jobs import JobSpec, MeshSpec, ProcessJob


@pytest.mark.parametrize("name", ["", "Upper", "-first", "last-", "_first", "a b", "a.b", "x" * 64])
def test_an_invalid_mesh_name_is_refused_at_construction(name: str) -> None:
    with pytest.raises(ConfigError, match="is not a valid name of a mesh"):
        MeshSpec(name, 1)


@pytest.mark.parametrize(
    "wrong", [{"hosts": 0}, {"hosts": True}, {"hosts": 1.5}, {"cpus": 0}, {"gpus": -1}]
)
def test_an_invalid_number_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="give a whole number"):
        MeshSpec("ones", **{"hosts": 1, **wrong})


def test_two_meshes_with_the_same_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="two meshes are named 'ones'"):
        ProcessJob({"ones": 1}).add_mesh("ones", 2)


def test_an_option_that_cannot_be_stored_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be stored"):
        MeshSpec("ones", 1, options={"open": object()})


def test_a_spec_survives_a_json_round_trip() -> None:
    mesh = MeshSpec("ones", 2, cpus=4, memory="16G", gpus=1, options={"zone": ("a", "b")})
    spec = JobSpec("mine", "process", (mesh,), {"env": {"A": "1"}}, ttl_s=60)
    again = JobSpec.from_json(spec.to_json())
    assert again.to_json() == spec.to_json()
    assert again.mesh("ones").hosts == 2


def test_an_unknown_mesh_error_lists_the_meshes_of_the_job() -> None:
    spec = ProcessJob({"ones": 1, "others": 1}).spec
    with pytest.raises(ConfigError, match="no mesh is named 'more': the job has 'ones', 'others'"):
        spec.resized("more", 2)


def test_a_job_without_a_mesh_is_not_applied() -> None:
    with pytest.raises(ConfigError, match="has no mesh"):
        ProcessJob().apply()
