"""What processes print: captured, forwarded and shown."""
