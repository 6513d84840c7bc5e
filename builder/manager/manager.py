"""Everything that the service's routes work with."""

from __future__ import annotations

from dataclasses import dataclass

from backends.home import Home
from backends.registry.registry import Registry
from builder.manager.admission import Admission
from builder.manager.callers import Callers
from builder.manager.housekeeping import Housekeeping
from builder.manager.store import JobStore
from builder.manager.supervisor import Supervisor
from builder.manager.uploads import Uploads


@dataclass(frozen=True)
class Manager:
    """One home's uploads and jobs, and who may use them.

    `is_local`: only this machine reaches the service.
    """

    home: Home
    registry: Registry
    store: JobStore
    uploads: Uploads
    supervisor: Supervisor
    housekeeping: Housekeeping
    admission: Admission
    callers: Callers
    is_local: bool = True
