"""Plug-in transports: the protocol, the registry, and transfers through them."""
