"""What a backend implements, what it gets and what it returns."""
