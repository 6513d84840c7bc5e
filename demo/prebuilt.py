"""The prebuilt parts: what was trained for the demo, kept in the repository so that `make quickstart` need not train.

    prebuilt.json              format version, the root's fingerprint, the hPLMs with their figures, what made them
    bank/<tenant>--<name>/     an hPLM's folder, as homes have it

The root's trained layers lie beside them (`demo/minilm_3_of_6.safetensors`); `made_with` is for people.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backends.adapters.bank import HplmArtifact, read_artifact
from backends.errors import CorruptFileError, FormatVersionError
from backends.storage import check_file, json_checksum, read_json, write_json
from builder.construct.tasks.trained_texts import TrainedTexts
from demo.root import DISTILLED

PREBUILT = Path(__file__).with_name("prebuilt")
FORMAT_VERSION = 1
_MANIFEST = "prebuilt.json"


@dataclass(frozen=True)
class Prebuilt:
    """The manifest of the prebuilt parts; `hplms` holds the figures of each hPLM's tuning by its ID."""

    folder: Path
    root_fingerprint: str
    distilled: Mapping[str, Any]
    hplms: Mapping[str, Mapping[str, Any]]
    made_with: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Path = PREBUILT) -> Prebuilt:
        """Read the manifest, which has a checksum of its own; `check` compares the other files.

        Raises:
            FormatVersionError: The parts are of a newer release.
        """
        path = folder / _MANIFEST
        with _advised():
            content = read_json(path)
        if (version := content.get("format_version")) != FORMAT_VERSION:
            raise FormatVersionError(
                f"{path} has format version {version!r}, but this release reads {FORMAT_VERSION}; take the prebuilt "
                "parts of this release, or build everything from texts with 'make demo'"
            )
        try:
            names = ("root_fingerprint", "distilled", "hplms", "made_with")
            return cls(folder, **{name: content[name] for name in names})
        except KeyError as error:
            raise CorruptFileError(f"{path} lacks {error}") from error

    def write(self) -> None:
        write_json(self.folder / _MANIFEST, {"format_version": FORMAT_VERSION, **self._content()})

    @property
    def checksum(self) -> str:
        return json_checksum(self._content())

    def check(self, distilled: Path = DISTILLED) -> None:
        """Reject damaged parts, before anything is made of them."""
        with _advised():
            check_file(distilled, **self.distilled)
            for hplm in self.hplms:
                self.artifact(hplm)

    def artifact(self, hplm: str) -> HplmArtifact:
        artifact = read_artifact(self.hplm_folder(hplm), self.root_fingerprint)
        if artifact.hplm != hplm:
            raise CorruptFileError(f"{self.hplm_folder(hplm)} holds the weights of {artifact.hplm!r}")
        return artifact

    def trained_texts(self, hplm: str) -> TrainedTexts:
        return TrainedTexts.read(self.hplm_folder(hplm))

    def hplm_folder(self, hplm: str) -> Path:
        return self.folder / "bank" / hplm.replace("/", "--")

    def _content(self) -> dict[str, Any]:
        return {
            "root_fingerprint": self.root_fingerprint,
            "distilled": dict(self.distilled),
            "hplms": dict(self.hplms),
            "made_with": dict(self.made_with),
        }


@contextmanager
def _advised() -> Iterator[None]:
    """Add to the complaint about a damaged part how to get it back."""
    try:
        yield
    except CorruptFileError as error:
        raise CorruptFileError(
            f"{error}; 'git checkout demo' in the clone brings the repository's files back"
        ) from error
