"""Replay: one recorded actor runs again in one local process, from the data of a case."""
