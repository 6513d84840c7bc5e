"""Real texts, nine models and a tour of the running server; training yields the cores to other processes."""

from backends.openmp import limit_spinning

limit_spinning()
