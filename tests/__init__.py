"""Tests across packages. The tests of a single package are in packages/*/tests."""
