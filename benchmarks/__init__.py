"""Measurements for the people who work on the library; not installed with it."""
