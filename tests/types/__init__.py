"""What the type checkers accept and refuse."""
