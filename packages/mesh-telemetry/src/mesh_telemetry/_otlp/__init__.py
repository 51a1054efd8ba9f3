"""Export with the OpenTelemetry protocol (OTLP)."""
