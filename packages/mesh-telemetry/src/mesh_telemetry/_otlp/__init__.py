"""Exports by OpenTelemetry's protocol."""
