"""The sizes of a root: everything that its weights alone do not say."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from backends.errors import CorruptFileError, InvalidArgumentError
from backends.fields import Fields
from backends.plot.keys import id_limit

ACTIVATIONS = ("gelu", "gelu_new", "relu", "silu")
FRAGMENT_SIZES = (2, 3, 5)
_WIDEST, _DEEPEST, _LONGEST = 1 << 16, 1 << 10, 1 << 20
_MOST = {
    "vocab_size": 1 << 31,
    "hidden_size": _WIDEST,
    "intermediate_size": 4 * _WIDEST,
    "num_heads": _WIDEST,
    "num_lower_layers": _DEEPEST,
    "num_upper_layers": _DEEPEST,
    "max_tokens": _LONGEST,
    "type_vocab_size": _WIDEST,
    "n": max(FRAGMENT_SIZES),
    "pad_id": 1 << 31,
    "num_sinks": _WIDEST,
}
"""The largest sizes that are read; no root comes near them."""


@dataclass(frozen=True)
class RootGeometry:
    """Sizes of one root; `num_lower_layers` become the n-gram table, `num_upper_layers` are shared by all tenants.

    Everywhere in a root id 0 is the empty slot of a fragment. A model that pads with another id has the two exchanged,
    in its embeddings and in what its tokenizer gives; `pad_id` says which. `embedding_size` is that of models whose
    embeddings are narrower than their layers. `num_sinks` is how many learnt positions each lower layer lets a
    fragment attend to besides its own tokens.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_lower_layers: int
    num_upper_layers: int
    max_tokens: int
    type_vocab_size: int
    layer_norm_eps: float
    activation: str
    n: int = 3
    pad_id: int = 0
    embedding_size: int | None = None
    num_sinks: int = 0

    @property
    def heads(self) -> tuple[int, int]:
        """The number of heads, and the size of each."""
        return self.num_heads, self.hidden_size // self.num_heads

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "intermediate_size", "num_heads", "num_upper_layers", "max_tokens"):
            if getattr(self, name) < 1:
                raise InvalidArgumentError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.num_lower_layers < 1:
            raise InvalidArgumentError("at least one lower layer is needed to make a table of")
        if self.hidden_size % self.num_heads:
            raise InvalidArgumentError(f"{self.num_heads} heads do not divide a hidden size of {self.hidden_size}")
        if self.activation not in ACTIVATIONS:
            raise InvalidArgumentError(f"activation {self.activation!r} is not one of {', '.join(ACTIVATIONS)}")
        if self.n not in FRAGMENT_SIZES:
            raise InvalidArgumentError(f"fragments have 2, 3 or 5 tokens, not {self.n}")
        if self.vocab_size > id_limit(self.n):
            raise InvalidArgumentError(
                f"fragments of {self.n} tokens have room for {id_limit(self.n)} token ids, not {self.vocab_size}"
            )
        if self.num_sinks < 0:
            raise InvalidArgumentError(f"num_sinks must be at least 0, not {self.num_sinks}")
        if not 0 <= self.pad_id < self.vocab_size:
            raise InvalidArgumentError(f"the padding id {self.pad_id} is outside the vocabulary of {self.vocab_size}")

    @property
    def centre(self) -> int:
        """The slot of a fragment that holds the token itself."""
        return self.n // 2

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def read(cls, stored: Fields) -> RootGeometry:
        """Read what `to_json` gave.

        Raises:
            CorruptFileError: A size is missing, unknown, or none that a root could have.
        """
        known = {field.name for field in fields(cls)}
        if unknown := set(stored.names()) - known:
            raise CorruptFileError(f"{stored.where} has unknown entries: {', '.join(sorted(unknown))}")
        optional = {"n": 3, "pad_id": 0, "num_sinks": 0}
        sizes = {
            name: optional[name] if name in optional and name not in stored else stored.whole(name, 0, most)
            for name, most in _MOST.items()
        }
        has_embedding_size = "embedding_size" in stored and stored.value("embedding_size") is not None
        try:
            return cls(
                **sizes,
                layer_norm_eps=stored.positive("layer_norm_eps"),
                activation=stored.text("activation"),
                embedding_size=stored.whole("embedding_size", 1, _WIDEST) if has_embedding_size else None,
            )
        except InvalidArgumentError as error:
            raise CorruptFileError(f"{stored.where}: {error}") from error
