"""Who owns what, and what happens when it fails."""
