"""A root's masked-LM head: trained with its first domain, kept beside the root for all later ones."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from backends.root.store import RootFolder
from backends.storage import file_checksum, json_checksum, write_tensors
from builder.construct.domain.mlm import MlmHead
from builder.construct.domain.pretrain import Pretrainer
from builder.construct.training.checkpoint import Checkpoint
from builder.locks import made_in_turn
from builder.progress import Report, Step
from builder.settings.domain import Pace

_WAIT = Step("wait for the masked-LM head", 0, 1, "another build trains it")
_ORIGIN = "origin"
_ROOT = "root_fingerprint"


class HeadFile:
    """The file of one root; a head of another root of the same name is not used."""

    def __init__(self, root: RootFolder) -> None:
        self._root = root
        self.path = root.path.with_name(f"{root.path.name}.mlm_head.safetensors")

    def exists(self) -> bool:
        return self._read() is not None

    def checksum(self) -> str:
        return file_checksum(self.path)

    def require(self, pretrainer: Pretrainer, corpus: Sequence[str], pace: Pace, report: Report) -> MlmHead:
        """The root's head; where there is none it is trained, and a build that comes second waits for the first.

        `corpus` are the checksums of the texts that the pretrainer has.
        """
        with made_in_turn(self.path, lambda: report(_WAIT)):
            head = self._read()
            if head is None:
                inputs = {"root": self._root.fingerprint, "pace": asdict(pace), "corpus": list(corpus)}
                checkpoint = Checkpoint(self.path.with_name(f".{self.path.name}.checkpoint"), json_checksum(inputs))
                head = pretrainer.train_head(pace, checkpoint, report)
                origin = {_ROOT: self._root.fingerprint, "corpus": list(corpus), "steps": pace.steps}
                # As one entry: several come in any order, and the file must be the same again.
                write_tensors(self.path, head.state_dict(), {_ORIGIN: json.dumps(origin)})
                checkpoint.remove()
            return head

    def _read(self) -> MlmHead | None:
        try:
            with safe_open(self.path, framework="pt") as file:
                if _origin(file.metadata() or {}).get(_ROOT) != self._root.fingerprint:
                    return None
                state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        except (FileNotFoundError, SafetensorError):
            return None
        with torch.device("meta"):
            head = MlmHead(self._root.geometry)
        head.load_state_dict(state, assign=True)
        return head.requires_grad_(False)


def _origin(metadata: Mapping[str, str]) -> dict[str, Any]:
    """Name what a head was made of; the files of earlier releases name the root only."""
    return {**metadata, **json.loads(metadata.get(_ORIGIN, "{}"))}
