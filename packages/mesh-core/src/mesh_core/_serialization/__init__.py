"""Arguments, results and exceptions as bytes."""
