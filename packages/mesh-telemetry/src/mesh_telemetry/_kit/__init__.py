"""Conformance tests for packages that add tables; importing this package requires pytest."""

import pytest

# Assertions in the conformance tests then report the values that they compared.
pytest.register_assert_rewrite("mesh_telemetry._kit.conformance")

from mesh_telemetry._kit.conformance import SourceConformance as SourceConformance  # noqa: E402
