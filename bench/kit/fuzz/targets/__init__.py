"""The readers that are fuzzed in process, a class in each file."""

from __future__ import annotations

from collections.abc import Mapping

from bench.kit.fuzz.target import Target
from bench.kit.fuzz.targets.answers import Answers
from bench.kit.fuzz.targets.bank import Bank
from bench.kit.fuzz.targets.imports import Imports
from bench.kit.fuzz.targets.loads import Loads
from bench.kit.fuzz.targets.lower import Lower
from bench.kit.fuzz.targets.overlays import Overlays
from bench.kit.fuzz.targets.parameters import Parameters
from bench.kit.fuzz.targets.records import Records
from bench.kit.fuzz.targets.registries import Registries
from bench.kit.fuzz.targets.requests import Requests
from bench.kit.fuzz.targets.roots import Roots
from bench.kit.fuzz.targets.scheduling import Scheduling
from bench.kit.fuzz.targets.signals import Signals
from bench.kit.fuzz.targets.students import Students
from bench.kit.fuzz.targets.tables import Tables
from bench.kit.fuzz.targets.task_files import TrainingFiles
from bench.kit.fuzz.targets.tickets import Tickets
from bench.kit.fuzz.targets.tokens import Tokens
from bench.kit.fuzz.targets.uploads import UploadedFiles
from bench.kit.fuzz.targets.upper import Upper
from bench.kit.fuzz.targets.waiting import Waiting
from bench.kit.fuzz.targets.words import Words

_ALL: tuple[type[Target], ...] = (
    *(Parameters, Tickets, Words, Tokens, Answers),
    *(Lower, Waiting, Upper, Scheduling, Signals),
    *(Bank, Students, Roots, Tables, Overlays, Registries),
    *(Imports, UploadedFiles, TrainingFiles, Requests, Loads, Records),
)
TARGETS: Mapping[str, type[Target]] = {target.name: target for target in _ALL}
