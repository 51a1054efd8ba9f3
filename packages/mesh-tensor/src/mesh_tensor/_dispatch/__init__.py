"""Translates PyTorch operations to compiled ops."""
