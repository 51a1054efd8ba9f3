"""Conformance tests for packages that add tables.

class TestMine(SourceConformance):
    source = "mine"

This module is empty if pytest is not installed.
"""

try:
    from mesh_telemetry._kit import SourceConformance as SourceConformance
except ModuleNotFoundError as _error:
    if _error.name != "pytest":
        raise
