"""Code that the type checkers accept or reject."""
