"""Bodies of jobs as the manager gets them, as far as their admission."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from backends.errors import InvalidArgumentError
from backends.home import Home
from backends.registry.registry import Registry
from bench.kit.fuzz.copied_home import copied_home
from bench.kit.fuzz.draw import Draw
from bench.kit.fuzz.json_values import any_value, bad_json, bad_value, encoded
from bench.kit.fuzz.target import Target
from builder.levels.target import check_target
from builder.manager.api.examples import JOB_EXAMPLES
from builder.requests.base import one_line
from builder.requests.jobs import JobRequest, stored_request
from builder.requests.levels import LadderTarget
from builder.settings.hplm import TuneSettings

_OPTIONAL = ("tune", "ladder", "settings", "after", "max_drop", "version", "keep", "labels", "domain", "retune")


class Requests(Target):
    """Examples of the documentation with other types, numbers and fields."""

    name = "requests"
    cases = 60_000

    def __init__(self, home: Home, scratch: Path) -> None:
        super().__init__(home, scratch)
        self._registry = Registry.open(copied_home(home, scratch))
        self._good: list[dict[str, Any]] = [dict(example["value"] or {}) for example in JOB_EXAMPLES.values()]
        self._adapter: TypeAdapter[JobRequest] = TypeAdapter(JobRequest)

    def attempt(self, draw: Draw) -> None:
        good = copy.deepcopy(draw.choice(self._good))
        if draw.happens(0.2):
            good[draw.choice(_OPTIONAL)] = any_value(draw)
        if draw.happens(0.3):
            request = stored_request(bad_value(draw, good))
        else:
            request = self._from_body(encoded(draw, bad_json(draw, good)))
        settled = request.settled(self._registry)
        TuneSettings().changed(settled.tune_changes)
        ladder = settled if isinstance(settled, LadderTarget) else getattr(settled, "ladder", None)
        if ladder is not None:
            check_target(ladder, goes_on=draw.happens(0.5))
        json.dumps(settled.model_dump(mode="json"))
        for target in (settled.target, settled.needed):
            if target is not None:
                str(target)
                target.entry(self._registry)

    def _from_body(self, body: bytes) -> JobRequest:
        """Read as FastAPI does, which answers with the first problems."""
        try:
            return self._adapter.validate_json(body)
        except ValidationError as error:
            raise InvalidArgumentError(one_line(error)) from error

    def close(self) -> None:
        self._registry.close()
