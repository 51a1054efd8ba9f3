"""Replicas of an actor behind one handle."""
