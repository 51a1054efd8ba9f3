"""Combinations of package versions."""
