"""Decoding of the files of a host into the rows of its tables."""
