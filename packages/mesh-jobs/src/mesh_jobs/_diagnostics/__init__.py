"""Diagnostics: probes between hosts, and the problems that they find."""
