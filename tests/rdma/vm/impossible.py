"""The error if no machine can run here."""


class Impossible(Exception):
    """No machine can run here; the message names the missing part and the remedy."""
