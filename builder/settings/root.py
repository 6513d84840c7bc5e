"""Settings of distilling a root."""

from __future__ import annotations

from dataclasses import dataclass

from backends.errors import InvalidArgumentError
from backends.plot.header import Store
from builder.settings.seeds import require_seed

TRAINED_PARTS = "trained_parts"
"""The entry of a root's origin that names what of it differs from its model."""
WORD_EMBEDDINGS = "word_embeddings"


@dataclass(frozen=True)
class DistilSettings:
    """The length and the strength of a distillation; the defaults suit a 6 × 384 model on two cores.

    The shares say how many of the fragments are shortened while learning, as a table shortens those that it does not
    hold; without that, what falls back fits badly with its neighbours. Tri-grams are a fallback of 5-grams only.
    `pair_share` of the texts are made into pairs, as some tasks are about them, and `noise_share` of the tokens are
    replaced, as other texts have other words.
    `final_weight` is the weight of the last state in the loss, that of every other state is 1; `attention_weight` is
    that of the attention scores. An `embedding_learning_rate` of 0 leaves the word embeddings as they are.
    """

    steps: int = 600
    tokens_per_batch: int = 2048
    learning_rate: float = 1e-3
    train_upper: bool = False
    upper_learning_rate: float = 1e-4
    embedding_learning_rate: float = 0.0
    warmup_steps: int = 40
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    final_weight: float = 1.0
    attention_weight: float = 0.0
    trigram_share: float = 0.25
    bigram_share: float = 0.2
    unigram_share: float = 0.15
    pair_share: float = 0.3
    noise_share: float = 0.3
    seed: int = 17
    checkpoint_every: int = 50

    def __post_init__(self) -> None:
        if min(self.steps, self.tokens_per_batch, self.checkpoint_every) < 1 or self.learning_rate <= 0:
            raise InvalidArgumentError(
                "steps, tokens per batch, steps between checkpoints and learning rate must be positive"
            )
        require_seed(self.seed)
        if self.train_upper and self.upper_learning_rate <= 0:
            raise InvalidArgumentError("the upper layers' learning rate must be positive where they learn")
        if min(self.embedding_learning_rate, self.attention_weight, self.warmup_steps, self.weight_decay) < 0:
            raise InvalidArgumentError("learning rates, weights, weight decay and warm-up cannot be negative")
        if min(self.final_weight, self.clip_norm) <= 0:
            raise InvalidArgumentError("the weight of the final state and the norm to clip at must be positive")
        shares = self.shares.values()
        if min(shares) < 0 or sum(shares) > 1:
            raise InvalidArgumentError(
                "the shares of shortened fragments must lie between 0 and 1, and so must their sum"
            )
        if not 0 <= self.pair_share <= 1:
            raise InvalidArgumentError(f"the share of pairs must lie between 0 and 1, not at {self.pair_share}")
        if not 0 <= self.noise_share <= 0.5:
            raise InvalidArgumentError(f"the share of noise must lie between 0 and 0.5, not at {self.noise_share}")

    @property
    def shares(self) -> dict[Store, float]:
        return {Store.TRI: self.trigram_share, Store.BI: self.bigram_share, Store.UNI: self.unigram_share}

    @property
    def trained_parts(self) -> set[str]:
        """The parts of a root that differ from its model afterwards."""
        optional = {"upper": self.train_upper, WORD_EMBEDDINGS: self.embedding_learning_rate > 0}
        return {"lower", "aggregation", *(name for name, learns in optional.items() if learns)}
