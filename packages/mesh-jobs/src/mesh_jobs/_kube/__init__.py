"""Hosts that are pods of a Kubernetes cluster."""
