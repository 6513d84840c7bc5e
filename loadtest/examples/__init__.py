"""Locustfiles to begin one's own with."""
