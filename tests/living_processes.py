"""Processes that may end while a test looks at them."""

import contextlib
from collections.abc import Iterable

import psutil


def living(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those that still run. Zombies do not: where nobody collects orphans they stay until the machine stops."""
    return [process for process in processes if _lives(process)]


def children_with(argument: str) -> list[psutil.Process]:
    """This process's living children with it in their command line."""
    return [child for child in psutil.Process().children() if argument in " ".join(_command(child))]


def _lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _command(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.cmdline()
    return []
