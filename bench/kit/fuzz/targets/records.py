"""Notes that the project's own programs leave in a home, and files that users write for commands."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

from backends.errors import ConflictError
from backends.heartbeat import read_pulses
from backends.home import Home
from backends.storage import read_errors_are_clear
from bench.kit.fuzz.draw import Draw
from bench.kit.fuzz.folders import BadFolder
from bench.kit.fuzz.json_values import bad_json, encoded
from bench.kit.fuzz.target import Target
from builder.clock_mark import require_steady_clock
from builder.construct.root.config import read_config, root_request
from builder.construct.root.model_folder import require_model_folder
from builder.levels.profile import CandidateProfile, CurvePoint, Profile, read_profile, write_profile
from builder.locks import folders_read
from builder.manager.uploads import Uploads
from builder.requests.base import UploadKind

_ROOT = {"source": "pip:some-model", "lower": 2, "corpus": ["a.txt"], "held_out": ["b.txt"], "distil": {"steps": 8}}
_TOML = 'source = "~/model"\nlower = 2\ncorpus = ["a.txt"]\n[distil]\nsteps = 8\nlearning_rate = 1e-3\n'
_SHARDS = {"metadata": {}, "weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
_PULSE = struct.pack("=3q4q16s16s16s16s", 7, 2, 2, 5, 6, 0, 9, b"run", b"intake", b"", b"")


class Records(Target):
    """Uploads' manifests, profiles of ladders, clocks, locks, heartbeats, configurations of roots, lists of shards."""

    name = "records"
    cases = 40_000

    def __init__(self, home: Home, scratch: Path) -> None:
        super().__init__(home, scratch)
        self._home = Home(scratch / "home")
        self._home.run.mkdir(parents=True)
        with Uploads(self._home, 1 << 20).receiving(UploadKind.CORPUS, "shop.txt") as incoming:
            incoming.write(b"one text\n")
            incoming.keep(lambda path: "1 texts")
        self._uploads = BadFolder(self._home.path / "uploads", self._home.path / "uploads")
        profile = scratch / "profile"
        profile.mkdir()
        candidate = CandidateProfile(2, 0.9, 0.5, 0.01, 0.02, 1.5, 4.0, 99, [CurvePoint(0.9, 0.5, 0.01, 0.02)])
        write_profile(profile, Profile("acme/topic", "a drop of 1 point", 0.01, 2, 6, [candidate]))
        self._profile = BadFolder(profile, profile)
        self._clock = self._home.run / "clock.json"
        self._note_clock()
        self._marks = json.loads(self._clock.read_text(encoding="utf-8"))
        self._reads: tuple[Callable[[Draw], None], ...] = (
            *(self._upload, self._ladder, self._clocks, self._lock, self._pulse, self._config, self._model),
        )

    def attempt(self, draw: Draw) -> None:
        draw.choice(self._reads)(draw)

    def _note_clock(self) -> None:
        require_steady_clock(self._home, 1.0)

    def _upload(self, draw: Draw) -> None:
        with self._uploads.damaged(draw):
            Uploads(self._home).all()

    def _ladder(self, draw: Draw) -> None:
        with self._profile.damaged(draw) as folder, read_errors_are_clear(folder):
            found = read_profile(folder)
            json.dumps([] if found is None else found.rows)

    def _clocks(self, draw: Draw) -> None:
        self._clock.write_bytes(encoded(draw, bad_json(draw, self._marks)))
        try:
            self._note_clock()
        except ConflictError:  # a mark that says that the clock was set
            self._clock.unlink()
            raise

    def _lock(self, draw: Draw) -> None:
        path = self.scratch / "lock"
        path.write_bytes(encoded(draw, bad_json(draw, ["plots/mini/shop@1"])))
        folders_read(path)

    def _pulse(self, draw: Draw) -> None:
        path = self.scratch / "hplm-heartbeat-upper"
        path.write_bytes(draw.damaged(_PULSE))
        for pulse in read_pulses(self.scratch):
            pulse.silent_s(10)

    def _config(self, draw: Draw) -> None:
        if draw.happens(0.5):
            path, content = self.scratch / "root.json", bad_json(draw, _ROOT)
        else:
            path, content = self.scratch / "root.toml", draw.edited(_TOML)
        path.write_bytes(encoded(draw, content))
        root_request("mini", read_config(path))

    def _model(self, draw: Draw) -> None:
        folder = self.scratch / "model"
        folder.mkdir(exist_ok=True)
        (folder / "model.safetensors.index.json").write_bytes(encoded(draw, bad_json(draw, _SHARDS)))
        require_model_folder(folder)
