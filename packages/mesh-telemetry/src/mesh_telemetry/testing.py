"""The conformance kit that every telemetry source must pass."""

__all__: list[str] = []
