"""Recorded traffic, read back: figures, pictures, and traces that load tests and simulations play."""
