"""Measurements, with threads that wait for each other as those of the server do."""

from backends.openmp import limit_spinning

limit_spinning()
