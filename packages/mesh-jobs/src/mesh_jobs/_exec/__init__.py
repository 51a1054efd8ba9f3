"""Commands on the ranks of a mesh."""
