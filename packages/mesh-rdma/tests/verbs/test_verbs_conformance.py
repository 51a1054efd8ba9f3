"""The conformance tests for verbs, through the public buffer API."""

from __future__ import annotations

import pytest

from mesh_rdma.testing import TransportConformance


@pytest.mark.rdma
class TestVerbs(TransportConformance):
    transport = "verbs"
