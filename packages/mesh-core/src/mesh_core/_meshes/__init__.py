"""Hosts, processes, actors and values as arrays with named dimensions.

A mesh is a table of processes and a region of that table. Slicing creates another region over the
same table, so a slice supports what the whole mesh supports: it can be called, split, flattened and
sent in a message. Only a whole mesh, as it was spawned, can be stopped, and only by its owner.
"""
