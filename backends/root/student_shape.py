"""The sizes of a root's students; no weights."""

from __future__ import annotations

from dataclasses import dataclass, replace

from backends.errors import InvalidArgumentError
from backends.fields import Fields
from backends.root.geometry import RootGeometry
from backends.student_levels import MOST_STUDENTS

PARALLEL = "parallel"
"""The wiring in which every student reads the hidden rows, so that all of them may run at once."""
_MOST = {"count": MOST_STUDENTS, "layers": 1 << 10, "width": 1 << 16}


@dataclass(frozen=True)
class StudentShape:
    """The sizes of a set: `count` students of `layers` layers, `width` numbers wide.

    Narrow students have fewer attention heads than the root, each as wide as the root's, and a feed-forward part that
    is narrower by as much.
    """

    count: int
    layers: int
    width: int
    wiring: str = PARALLEL

    def __post_init__(self) -> None:
        for name in ("count", "layers", "width"):
            if getattr(self, name) < 1:
                raise InvalidArgumentError(f"the {name} of students must be at least 1, not {getattr(self, name)}")
        if self.wiring != PARALLEL:
            raise InvalidArgumentError(f"the wiring {self.wiring!r} of students is not known; {PARALLEL!r} is")

    @classmethod
    def read(cls, stored: Fields) -> StudentShape:
        count, layers, width = (stored.whole(name, 1, most) for name, most in _MOST.items())
        return cls(count, layers, width, stored.text("wiring") if "wiring" in stored else PARALLEL)

    def is_narrow(self, hidden_size: int) -> bool:
        """Whether students are narrower than hidden rows, so that each begins with a map into its own width."""
        return self.width < hidden_size

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


def _multiplied(geometry: RootGeometry) -> int:
    """Count the weights of one layer's products."""
    return 2 * geometry.hidden_size * (2 * geometry.hidden_size + geometry.intermediate_size)
