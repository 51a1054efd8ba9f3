"""Metrics of the whole program for Prometheus."""
