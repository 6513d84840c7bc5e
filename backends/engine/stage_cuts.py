"""Where roots are cut in stages, and what their stages take of the devices' memory."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from backends.adapters.student_adapters import student_weights_bytes
from backends.engine.memory_sizes import layers_bytes, slots_bytes
from backends.engine.settings import EngineSettings
from backends.errors import HplmError, InvalidArgumentError
from backends.home import Home
from backends.root.store import RootFolder
from backends.root.student_set import StudentSet
from backends.scheduling.cost_profile import layer_times
from backends.scheduling.cuts import Cut, equal_latency_cuts, stage_sums
from backends.stack_key import STUDENTS, StackKey


class DeviceMemoryError(HplmError):
    """A root's layers and slots do not fit beside those that the devices hold already."""


class StageCuts:
    """Cuts each root where its slowest stage takes least, and keeps account of `device_memory`. Thread-safe.

    A layer's time is the profile's where there is one, whatever it was measured with; else all layers count alike.
    """

    def __init__(self, home: Home, settings: EngineSettings) -> None:
        self._home = home
        self._settings = settings
        self._taken: dict[StackKey, Sequence[int]] = {}
        """Bytes in each stage."""
        self._in_force: dict[StackKey, Cut] = {}
        self._lock = threading.Lock()

    def cut(self, key: StackKey, root: RootFolder, slots_bytes: int = 0) -> Cut:
        """Cut a root that is being loaded, and take the memory for it.

        Args:
            key: Its stack.
            root: The root.
            slots_bytes: What its slots take in all layers.

        Raises:
            DeviceMemoryError: There is too little left.
            InvalidArgumentError: It has fewer layers than stages.
        """
        num_layers, stages = root.geometry.num_upper_layers, self._settings.stack.stages
        if stages > num_layers:
            raise InvalidArgumentError(
                f"root {key.root!r} cannot be cut into {stages} stages: it has {num_layers} upper layers"
            )
        whole_bytes = layers_bytes(root.upper_bytes, self._settings.dtype_in_force) + slots_bytes
        sizes = [-(-whole_bytes // num_layers)] * num_layers
        self.release(key)
        with self._lock:
            times = layer_times(self._home.profile(key.root), root.fingerprint, num_layers)
            cut = equal_latency_cuts(times, sizes, stages, self._rooms()).get(stages)
            if cut is None:
                raise DeviceMemoryError(self._complaint(key, whole_bytes, stages))
            self._taken[key], self._in_force[key] = stage_sums(sizes, cut), cut
        return cut

    def take_students(self, key: StackKey, students: StudentSet, hplms: Sequence[Path]) -> None:
        """Take the memory for the students of a root, which are not cut, and for the hPLMs that go with them.

        Raises:
            DeviceMemoryError: There is too little left.
        """
        slots, states = self._settings.stack.num_slots - 1, self._settings.precision.states
        whole_bytes = layers_bytes(students.served_bytes, self._settings.dtype_in_force)
        whole_bytes += slots_bytes(hplms, slots, states, student_weights_bytes)
        self.release(key)
        with self._lock:
            rooms = self._rooms()
            if rooms is not None and whole_bytes > rooms[0]:
                raise DeviceMemoryError(self._complaint(key, whole_bytes, stages=1))
            self._taken[key] = [whole_bytes]

    def release(self, key: StackKey) -> None:
        """Take note that a stack was unloaded, or is cut anew."""
        with self._lock:
            self._taken.pop(key, None)
            self._in_force.pop(key, None)

    def slowest_share(self, key: StackKey, root: RootFolder) -> float:
        """Return the share of a root's layers that its slowest stage takes, in time; before it is loaded, at best."""
        stages, num_layers = self._settings.stack.stages, root.geometry.num_upper_layers
        times = layer_times(self._home.profile(key.root), root.fingerprint, num_layers)
        cut = self._in_force.get(key) or equal_latency_cuts(times, [0] * num_layers, stages).get(stages)
        return 1.0 if cut is None else max(stage_sums(times, cut)) / sum(times)

    def _rooms(self) -> list[int] | None:
        """Return what is left in each stage."""
        budget = self._settings.stack.device_memory
        if budget is None:
            return None
        each = self._taken.values()
        return [budget - sum(of_stack[stage] for of_stack in each) for stage in range(self._settings.stack.stages)]

    def _complaint(self, key: StackKey, whole_bytes: int, stages: int) -> str:
        megabytes = f"{whole_bytes / 1e6:.1f} MB in {stages} {'stage' if stages == 1 else 'stages'}"
        left, budget = min(self._rooms() or [0]) / 1e6, (self._settings.stack.device_memory or 0) / 1e6
        what = f"{'the set of students of ' if key.level == STUDENTS else ''}root {key.root!r} takes"
        return (
            f"{what} {megabytes}, and of the {budget:.1f} MB of --device-memory of each stage "
            f"{max(0.0, left):.1f} MB are left in the fullest; more --stages or fewer --slots may fit"
        )
