"""The error of a machine that cannot be here."""


class Impossible(Exception):
    """There can be no machine here; the text says what is missing, and what to do."""
