"""Heap snapshots of processes, taken with memray."""
