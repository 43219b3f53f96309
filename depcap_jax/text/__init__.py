"""Strings to ids and back, on the host."""
