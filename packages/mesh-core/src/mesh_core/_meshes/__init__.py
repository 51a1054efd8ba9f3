"""Hosts, processes, actors and values as arrays with named dimensions."""
