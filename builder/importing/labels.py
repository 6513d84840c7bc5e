"""Names for the outputs of an imported head."""

from __future__ import annotations

from backends.errors import InvalidArgumentError
from builder.construct.tasks.conll import OUTSIDE
from builder.construct.tasks.dataset import NER, REGRESSION
from builder.importing.heads import ImportedHead


def require_labels(head: ImportedHead, given: tuple[str, ...] | None) -> tuple[str, ...]:
    """The labels that were given, or the folder's own; as many as the head has outputs."""
    if head.task == REGRESSION:
        if given:
            raise InvalidArgumentError("the head gives one number, a regression, which has no labels")
        return ()
    labels = given or head.labels
    if labels is None:
        raise InvalidArgumentError(
            f"the folder does not say what the {head.num_outputs} outputs of its head are called; name them in their "
            "order with --labels a,b,c, or --labels @FILE with one a line"
        )
    if len(labels) != head.num_outputs or len(set(labels)) != len(labels):
        raise InvalidArgumentError(
            f"the head has {head.num_outputs} outputs; given are {len(set(labels))} different labels: {_shown(labels)}"
        )
    if head.task == NER:
        _require_bio(labels)
    return labels


def _require_bio(labels: tuple[str, ...]) -> None:
    """Check the tags of entities; of other schemes, as of ends and of single words, entities would be lost or cut."""
    kinds = {label[2:] for label in labels if label.startswith("B-")}
    unknown = [
        label for label in labels if label != OUTSIDE and (label[:2] not in ("B-", "I-") or label[2:] not in kinds)
    ]
    if OUTSIDE in labels and kinds and not unknown:
        return
    which = f", and {unknown[0]!r} is none of these" if unknown and OUTSIDE in labels and kinds else ""
    raise InvalidArgumentError(
        f"NER labels are O, for words outside of entities, B-… and, for kinds that have one, I-…{which}; "
        f"these are {_shown(labels)}"
    )


def _shown(labels: tuple[str, ...]) -> str:
    return ", ".join(labels[:8]) + (", …" if len(labels) > 8 else "")
