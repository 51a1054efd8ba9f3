"""How actors run in their process."""
