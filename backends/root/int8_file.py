"""What was measured of a root in int8: `roots/<root>/int8.json`, written by exports and read by servers.

A few channels are many times as large as the others, and a token has one scale for all. So channels are divided by
their smoothing before they are quantised, and the weights that read them multiplied, once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from backends.errors import CorruptFileError, FileError, FingerprintMismatchError
from backends.fields import Fields, read_fields
from backends.storage import json_checksum, read_errors_are_clear, write_json

if TYPE_CHECKING:
    from torch import Tensor

    from backends.root.geometry import RootGeometry

QUANTISATION_FORMAT_VERSION = 1
Smoothed = Literal["query_key_value", "ffn_in"]
"""The products that read a norm's outputs, where the large channels are."""
SMOOTHED: tuple[Smoothed, ...] = get_args(Smoothed)
Smoothing = Mapping[tuple[int, Smoothed], "Tensor"]
"""Factors for each layer and product. Shape: `[H]` each, positive."""
_FILE = "int8.json"
_DIGITS = 5


@dataclass(frozen=True)
class Int8Fidelity:
    """Answers in int8 against those in fp32, on texts of a corpus.

    Attributes:
        cosine: Mean cosine of tokens' final states, without adapters.
        equal_labels: By `tenant/name@version`, the share of labels that are the same.
        texts: Number of texts.
        instructions: The processor's; others round otherwise.
        unreadable: hPLMs whose files, or whose domain's, could not be read.
        known_fragments: The share of the texts' fragments that the root's table has; files of before have none.
        conditions: Names the hPLM versions, domain, arithmetic and method that this is of; files of before have none.
        inputs: Names the texts too.
        num_labels: How many labels of each hPLM were compared; files of before have none, and each text counts as one.
    """

    cosine: float
    equal_labels: Mapping[str, float]
    texts: int
    instructions: str | None = None
    unreadable: tuple[str, ...] = ()
    known_fragments: float | None = None
    conditions: str | None = None
    inputs: str | None = None
    num_labels: Mapping[str, int] = field(default_factory=dict)

    @property
    def num_compared(self) -> int:
        """Labels of all hPLMs."""
        return sum(self.num_labels.get(hplm, self.texts) for hplm in self.equal_labels)

    @property
    def num_changed(self) -> int:
        """Labels of all hPLMs that int8 changes."""
        shares = self.equal_labels.items()
        return sum(round(self.num_labels.get(hplm, self.texts) * (1 - share)) for hplm, share in shares)

    def equal_labels_of(self, hplm: str, version: int) -> float | None:
        return self.equal_labels.get(version_label(hplm, version))


@dataclass(frozen=True)
class Quantisation:
    """How a root is quantised, and what that costs; `root_fingerprint` says of which root."""

    root_fingerprint: str
    smoothing: Smoothing
    fidelity: Int8Fidelity | None = None

    def write(self, root: Path) -> None:
        write_json(
            root / _FILE,
            {
                "format_version": QUANTISATION_FORMAT_VERSION,
                "root_fingerprint": self.root_fingerprint,
                "smoothing": self._numbers(),
                "fidelity": None if self.fidelity is None else asdict(self.fidelity),
            },
        )

    def _numbers(self) -> dict[str, list[float]]:
        return {
            f"{layer}.{product}": [float(f"{value:.{_DIGITS}g}") for value in channels.tolist()]
            for (layer, product), channels in self.smoothing.items()
        }


def version_label(hplm: str, version: int) -> str:
    return f"{hplm}@{version}"


def read_fidelity(root: Path, fingerprint: str) -> Int8Fidelity | None:
    """Read what was measured of a root, if it was; raises as `read_smoothing`."""
    content = _content(root / _FILE, fingerprint)
    if content is None or "fidelity" not in content or content.value("fidelity") is None:
        return None
    fidelity = content.part("fidelity")
    equal_labels = fidelity.part("equal_labels")
    num_labels = fidelity.part("num_labels") if "num_labels" in fidelity else None
    return Int8Fidelity(
        fidelity.number("cosine", -1, 1),
        {name: equal_labels.number(name, 0, 1) for name in equal_labels.names()},
        fidelity.whole("texts"),
        None if fidelity.get("instructions") is None else fidelity.text("instructions"),
        fidelity.texts("unreadable") if "unreadable" in fidelity else (),
        None if fidelity.get("known_fragments") is None else fidelity.number("known_fragments", 0, 1),
        None if fidelity.get("conditions") is None else fidelity.text("conditions"),
        None if fidelity.get("inputs") is None else fidelity.text("inputs"),
        {} if num_labels is None else {name: num_labels.whole(name, 1) for name in num_labels.names()},
    )


def read_smoothing(root: Path, fingerprint: str, geometry: RootGeometry) -> Smoothing | None:
    """Read a root's smoothing, if it has one.

    Raises:
        FileError: The file is damaged, unreadable, of another root, or of a newer format.
    """
    content = _content(root / _FILE, fingerprint)
    if content is None:
        return None
    try:
        return _smoothing(content.part("smoothing"), geometry)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:  # a list that is no tensor
        raise CorruptFileError(f"{root / _FILE} does not fit the root: {error}") from error


def smoothing_checksum(root: Path) -> str | None:
    """Name a root's smoothing, to see whether it has changed; None where none can be read."""
    try:
        with read_errors_are_clear(root / _FILE):
            if not (root / _FILE).exists():
                return None
            return json_checksum(read_fields(root / _FILE, QUANTISATION_FORMAT_VERSION).value("smoothing"))
    except FileError:
        return None


def _content(path: Path, fingerprint: str) -> Fields | None:
    with read_errors_are_clear(path):
        if not path.exists():
            return None
        content = read_fields(path, QUANTISATION_FORMAT_VERSION)
    if (of_root := content.text("root_fingerprint")) != fingerprint:
        raise FingerprintMismatchError(f"{path} was made for root {of_root}, not {fingerprint}")
    return content


def _smoothing(content: Fields, geometry: RootGeometry) -> Smoothing:
    import torch  # it takes a second to import, and commands read the fidelity only

    smoothing = {
        (layer, product): torch.tensor(content.value(f"{layer}.{product}"), dtype=torch.float32)
        for layer in range(geometry.num_upper_layers)
        for product in SMOOTHED
    }
    for (layer, product), channels in smoothing.items():
        if channels.shape != (geometry.hidden_size,):
            raise ValueError(f"layer {layer} has {channels.numel()} channels of {product}, not {geometry.hidden_size}")
        if not bool((channels.isfinite() & (channels > 0) & channels.reciprocal().isfinite()).all()):
            raise ValueError(f"layer {layer} has channels of {product} that are no positive numbers to divide by")
    return smoothing
