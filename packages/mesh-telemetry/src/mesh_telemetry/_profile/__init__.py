"""Traces of a program for Perfetto."""
