"""The first program that a user runs with each published package."""
