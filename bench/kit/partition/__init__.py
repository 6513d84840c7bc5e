"""Registries that fail, for `bench.partition`."""
