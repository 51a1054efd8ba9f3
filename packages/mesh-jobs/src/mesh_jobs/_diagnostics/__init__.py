"""Diagnostics: probes between hosts, and what is wrong with them."""
