"""Builds an engine's stacks: the upper layers of a root, whole or cut in stages, and its students."""

from __future__ import annotations

import torch

from backends.adapters.bank import HplmArtifact
from backends.adapters.host_bank import HostBank
from backends.engine.audit import Audit
from backends.engine.compute_pool import ComputePool
from backends.engine.cut_stack import CutUpperStack
from backends.engine.encoder_stack import EncoderStack
from backends.engine.memory_sizes import slots_bytes
from backends.engine.next_stage import NextStage
from backends.engine.part_stack import PartStack, PartUpperStack
from backends.engine.pipeline import Pipeline, own_place, stage_places
from backends.engine.settings import EngineSettings
from backends.engine.stack import UpperStack
from backends.engine.stack_protocol import Stack
from backends.engine.stage_cuts import StageCuts
from backends.engine.student_layers import StudentLayers
from backends.engine.student_stack import StudentStack
from backends.errors import InvalidArgumentError, OtherStudentsError
from backends.heartbeat import Beat
from backends.home import Home
from backends.registry.entries import HplmEntry
from backends.registry.snapshot import RegistrySnapshot
from backends.root.store import RootFolder
from backends.root.student_set import read_students
from backends.scheduling.cuts import spans_of
from backends.stack_key import STUDENTS, StackKey


def compute_pool_of(settings: EngineSettings, beat: Beat) -> ComputePool:
    """Make the threads of an engine: one pool, or one for each stage that this process computes."""
    device, stages, stage = torch.device(settings.stack.device), settings.stack.stages, settings.stack.stage
    if stages == 1:
        return ComputePool(settings.threads, device, beat)
    if stage is not None:
        return Pipeline([own_place(device, stage, stages, settings.threads)], beat)
    return Pipeline(stage_places(device, stages, settings.threads), beat)


class StackBuilder:
    """Builds stacks that compute on one pool, as often as they are loaded.

    Args:
        home: Home of the roots.
        snapshot: Live versions, which slots are for.
        settings: Of the engine.
        compute_pool: What `compute_pool_of` has made for these.
        cuts: Where roots are cut.
        host_bank: Weights of hPLMs.
        audit: Compares early answers with full ones.
    """

    def __init__(
        self,
        home: Home,
        snapshot: RegistrySnapshot,
        settings: EngineSettings,
        compute_pool: ComputePool,
        cuts: StageCuts,
        host_bank: HostBank,
        audit: Audit,
    ) -> None:
        self._home = home
        self._snapshot = snapshot
        self._settings = settings
        self._compute_pool = compute_pool
        self._cuts = cuts
        self._host_bank = host_bank
        self._audit = audit
        stage = settings.stack.next_stage
        self._next_stage = None if stage is None else NextStage(stage)

    def build(self, key: StackKey) -> Stack:
        root = RootFolder(self._home.root(key.root))
        if key.level == STUDENTS:
            return self._student_stack(key, root)
        upper = self._upper(key, root)

        def load(entry: HplmEntry) -> HplmArtifact:
            return self._host_bank.artifact(entry, upper.fingerprint, upper.hidden_size, upper.num_layers)

        if isinstance(upper, PartUpperStack):
            return PartStack(key, upper, load, self._audit, self._next_stage)
        return EncoderStack(key, upper, load, self._audit)

    def _upper(self, key: StackKey, root: RootFolder) -> UpperStack:
        settings = self._settings.stack
        if settings.stages == 1 and settings.device_memory is None:
            return UpperStack(root, settings, self._compute_pool)
        cut = self._cuts.cut(key, root, self._slots_bytes(key.root) if settings.device_memory else 0)
        try:
            if isinstance(self._compute_pool, Pipeline) and settings.stage is not None:
                return PartUpperStack(root, settings, self._compute_pool, spans_of(cut), settings.stage)
            if isinstance(self._compute_pool, Pipeline):
                return CutUpperStack(root, settings, self._compute_pool, spans_of(cut))
            return UpperStack(root, settings, self._compute_pool)
        except BaseException:
            self._cuts.release(key)
            raise

    def _slots_bytes(self, root: str) -> int:
        live = self._snapshot.live()
        folders = [self._home.path / entry.folder for entry in live if entry.domain.root == root]
        return slots_bytes(folders, self._settings.stack.num_slots - 1, self._settings.precision.states)

    def _student_stack(self, key: StackKey, root: RootFolder) -> StudentStack:
        if self._settings.stack.stages > 1:
            raise InvalidArgumentError(
                f"students of root {key.root!r} are not served where layers are cut in stages; ask for another level"
            )
        students, geometry = read_students(root), root.geometry
        if students is None or students.fingerprint != key.edition:
            raise OtherStudentsError(f"{root.path} holds other students than {key.edition}, or none")
        if self._settings.stack.device_memory is not None:
            own = [entry for entry in self._snapshot.live() if key in entry.stacks]
            self._cuts.take_students(key, students, [self._home.path / entry.folder for entry in own])
        try:
            return StudentStack(
                key,
                StudentLayers(students, self._settings.stack, self._compute_pool),
                students.depth,
                lambda entry: self._host_bank.with_students(
                    entry, root.fingerprint, geometry.hidden_size, geometry.num_upper_layers, students
                ),
            )
        except BaseException:
            self._cuts.release(key)
            raise
