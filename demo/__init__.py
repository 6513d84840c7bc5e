"""Real texts, nine models and a tour of the running server; training yields the cores to other processes."""

from backends.openmp import wait_briefly

wait_briefly()
