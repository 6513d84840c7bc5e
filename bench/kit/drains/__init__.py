"""Drains of a supervised server under load: who asks, and what becomes of each request."""
