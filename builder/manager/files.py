"""Where a manager keeps what is not in the database."""

from __future__ import annotations

from pathlib import Path

from backends.home import Home


def log_path(home: Home, job_id: int) -> Path:
    """The log of all attempts of a job."""
    return home.run / "jobs" / f"{job_id}.log"
