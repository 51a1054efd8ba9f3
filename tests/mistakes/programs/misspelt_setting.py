"""A misspelt setting."""

from mesh_core import configure

configure(mailbox_len=10)
