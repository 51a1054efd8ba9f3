"""Shapes with named dimensions, and values arranged in them."""
