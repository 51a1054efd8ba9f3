"""Sharded arrays, and schedules that copy them from one layout to another."""
