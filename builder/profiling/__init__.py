"""Measurements of a root on this machine."""
