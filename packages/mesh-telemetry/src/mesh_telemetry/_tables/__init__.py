"""The tables of a host: its segments, files, stacks and live rows by name of the table."""
