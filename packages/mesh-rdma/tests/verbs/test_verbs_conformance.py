"""The conformance kit over verbs: buffers as programs use them."""

from __future__ import annotations

import pytest

from mesh_rdma.testing import TransportConformance


@pytest.mark.rdma
class TestVerbs(TransportConformance):
    transport = "verbs"
