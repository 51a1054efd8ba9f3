"""Processing of a query, from its text to its result."""
