"""The actors of telemetry: the coordinator of all hosts, and the actor that serves one host."""
