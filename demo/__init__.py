"""Real texts, nine models, a tour of the running server; its training shares the cores with whoever else is there."""

from backends.openmp import wait_briefly

wait_briefly()
