"""Functions that are recorded once and replayed with one message."""
