"""Measurements, with threads that wait for each other as those of the server do."""

from backends.openmp import wait_briefly

wait_briefly()
