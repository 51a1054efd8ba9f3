"""Tests across packages. Those of one package alone are in packages/*/tests."""
