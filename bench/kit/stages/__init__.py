"""Engines without Triton, each in a process of its own, that are asked at given times."""
