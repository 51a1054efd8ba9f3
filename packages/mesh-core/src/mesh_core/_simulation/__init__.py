"""A cluster in one process: unchanged actors under virtual time and faults that a seed selects."""
