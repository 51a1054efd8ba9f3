"""From files of a host to the rows of its tables."""
