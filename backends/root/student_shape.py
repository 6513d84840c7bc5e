"""The sizes of a root's students; no weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Literal, get_args

from backends.errors import InvalidArgumentError
from backends.fields import Fields
from backends.root.geometry import RootGeometry
from backends.student_levels import MOST_STUDENTS

if TYPE_CHECKING:
    from torch import Tensor

Wiring = Literal["parallel", "chained"]
PARALLEL: Wiring = "parallel"
"""The wiring in which every student reads the hidden rows, and all of them together say what the upper layers say."""
CHAINED: Wiring = "chained"
"""The wiring in which a student reads what the one before computed, and says by itself what the upper layers say."""
_MOST = {"count": MOST_STUDENTS, "layers": 1 << 10, "width": 1 << 16}


@dataclass(frozen=True)
class StudentShape:
    """The sizes of a set: `count` students of `layers` layers, `width` numbers wide, and what each of them reads.

    Narrow students have fewer attention heads than the root, each as wide as the root's, and a feed-forward part that
    is narrower by as much.
    """

    count: int
    layers: int
    width: int
    wiring: Wiring = PARALLEL

    def __post_init__(self) -> None:
        for name in ("count", "layers", "width"):
            if getattr(self, name) < 1:
                raise InvalidArgumentError(f"the {name} of students must be at least 1, not {getattr(self, name)}")
        require_wiring(self.wiring)

    @classmethod
    def read(cls, stored: Fields) -> StudentShape:
        count, layers, width = (stored.whole(name, 1, most) for name, most in _MOST.items())
        return cls(count, layers, width, require_wiring(stored.text("wiring")) if "wiring" in stored else PARALLEL)

    @property
    def is_chained(self) -> bool:
        return self.wiring == CHAINED

    @property
    def whole(self) -> range:
        """The students, counted from 0, that say everything by themselves; others say what those before them do not."""
        return range(self.count if self.is_chained else 1)

    def is_narrow(self, hidden_size: int) -> bool:
        """Whether students are narrower than hidden rows, so that each begins with a map into its own width."""
        return self.width < hidden_size

    def learns(self, hidden_size: int) -> bool:
        """Whether students are more than the root's first upper layers as they are."""
        return not self.is_chained or self.is_narrow(hidden_size)

    def pass_each(self, rows: Tensor, run: Callable[[int, Tensor], Tensor], count: int) -> Iterator[Tensor]:
        """Yield the first students' states; `run` computes those of a student, counted from 0, from what it reads."""
        states = rows
        for student in range(count):
            states = run(student, states if self.is_chained else rows)
            yield states

    def prefixes(self, each: Iterable[Tensor]) -> list[Tensor]:
        """Return what the first student says, the first two, and so on, from what each one says."""
        return list(each if self.is_chained else accumulate(each))

    def geometry(self, root: RootGeometry) -> RootGeometry:
        """Return the sizes of all students' layers as one stack, in which those of `span` are one student's.

        Raises:
            InvalidArgumentError: The students do not fit the root.
        """
        if self.width > root.hidden_size:
            raise InvalidArgumentError(
                f"students are at most as wide as the hidden rows of their root, {root.hidden_size} numbers, not "
                f"{self.width}"
            )
        head_size = root.hidden_size // root.num_heads
        if self.width % head_size:
            raise InvalidArgumentError(
                f"the width of students is a multiple of {head_size}, the width of their root's attention heads, not "
                f"{self.width}"
            )
        return replace(
            root,
            hidden_size=self.width,
            intermediate_size=max(1, root.intermediate_size * self.width // root.hidden_size),
            num_heads=self.width // head_size,
            num_upper_layers=self.count * self.layers,
        )

    def depth(self, root: RootGeometry) -> float:
        """Return what one student costs, as a share of the root's upper layers: of what their products multiply.

        All students of a chain count as the first one, which alone may have a map into its own width.

        Raises:
            InvalidArgumentError: The students do not fit the root.
        """
        own, depth = self.geometry(root), self.layers / root.num_upper_layers
        if not self.is_narrow(root.hidden_size):
            return depth
        into = root.hidden_size * self.width
        return (self.layers * _multiplied(own) + into) / (root.num_upper_layers * _multiplied(root))

    def span(self, student: int) -> range:
        """Return the layers of a student, counted from 0."""
        return range(student * self.layers, (student + 1) * self.layers)


def require_wiring(name: str) -> Wiring:
    """Return the wiring of this name.

    Raises:
        InvalidArgumentError: There is none.
    """
    for known in get_args(Wiring):
        if name == known:
            wiring: Wiring = known
            return wiring
    raise InvalidArgumentError(
        f"the wiring {name!r} of students is not known; {' and '.join(map(repr, get_args(Wiring)))} are"
    )


def _multiplied(geometry: RootGeometry) -> int:
    """Count the weights of one layer's products."""
    return 2 * geometry.hidden_size * (2 * geometry.hidden_size + geometry.intermediate_size)
