"""Completions of background work: groups of transfers, tasks and their threads."""
