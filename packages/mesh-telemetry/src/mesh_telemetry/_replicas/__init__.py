"""Copies of the latest events of a host on another one, which are read if the host is lost."""
