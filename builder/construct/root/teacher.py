"""The unchanged pretrained model, which computes the states that a root should have on the root's own rows."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from backends.root.upper import UpperLayers
from builder.construct.root.conversion import RootParts, padding_exchange
from builder.construct.root.families import FAMILIES
from builder.construct.root.pretrained import load_pretrained
from builder.construct.training.rows import PaddedRows


class Teacher:
    """`parts` are those of the same model as `convert` gives them; what becomes of them later does not matter."""

    def __init__(self, folder: Path, parts: RootParts) -> None:
        self._model = load_pretrained(folder)
        self._own_ids = padding_exchange(parts.geometry)
        self._num_lower_layers = parts.geometry.num_lower_layers
        config: Any = self._model.config
        self._first_position = FAMILIES[config.model_type].position(parts.geometry.pad_id)
        self._has_types = getattr(config, "type_vocab_size", 0) > 1
        self.upper: UpperLayers = copy.deepcopy(parts.upper).requires_grad_(False)

    def to(self, device: torch.device) -> Teacher:
        """Move this teacher."""
        self._model, self.upper = self._model.to(device), self.upper.to(device)
        self._own_ids = self._own_ids.to(device)
        return self

    @property
    def position_embeddings(self) -> Tensor:
        """Return the embeddings of a text's positions, from its first token on: `[P, H]`."""
        positions: Tensor = self._model.get_submodule("embeddings.position_embeddings").get_parameter("weight")
        return positions[self._first_position :]

    def states(self, rows: PaddedRows) -> list[Tensor]:
        """The state before the first upper layer and that after each, of the real tokens, each `[T, H]` fp32."""
        return [state[rows.mask].float() for state in self._all_states(rows)[self._num_lower_layers :]]

    def lower_states(self, rows: PaddedRows) -> list[Tensor]:
        """Compute the input of each lower layer, `[B, L, H]`."""
        return self._all_states(rows)[: self._num_lower_layers]

    def _all_states(self, rows: PaddedRows) -> list[Tensor]:
        types = {"token_type_ids": rows.types} if self._has_types else {}
        output = self._model(
            input_ids=self._own_ids[rows.token_ids],
            attention_mask=rows.mask.long(),
            output_hidden_states=True,
            **types,
        )
        return list(output.hidden_states)
