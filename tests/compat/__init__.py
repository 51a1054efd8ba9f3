"""Packages of different versions with each other."""
