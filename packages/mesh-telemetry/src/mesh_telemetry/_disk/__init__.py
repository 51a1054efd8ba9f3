"""What is kept on disk, and asked when the program has ended."""
