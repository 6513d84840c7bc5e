"""Whether what an earlier build of a table left may be used: only if it was made from the same inputs."""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass
from pathlib import Path

from backends.errors import CorruptFileError
from backends.plot.header import TableHeader
from backends.storage import HALF_WRITTEN, disk_full_is_an_error, read_json, remove_folder, staging_folder, write_json

LOGGER = logging.getLogger(__name__)
INPUTS = "inputs"
"""The entry of a table's origin that names what it was made from."""


@dataclass(frozen=True)
class TableBuild:
    """The build of one unregistered table; `inputs` names everything that it depends on."""

    target: Path
    inputs: str

    def is_published(self) -> bool:
        """Whether the folder is there; one of other inputs is removed, as it is not in use yet."""
        if not self.target.exists():
            return False
        if self._published_inputs() == self.inputs:
            return True
        LOGGER.warning("%s was built from other inputs and is not registered; building it again", self.target)
        remove_folder(self.target)
        return False

    def require_same_staging(self) -> None:
        """Make the staging folder, without what a build from other inputs left there; note the inputs of this one."""
        if self.staged.exists():
            if self._staged_inputs() == self.inputs:
                _remove_half_written(self.staged)
                return
            LOGGER.warning("the unfinished build of %s was made from other inputs; starting again", self.target)
            self.forget_staging()  # first: a kill in the middle of the removal must not leave what looks resumable
            shutil.rmtree(self.staged)
        with disk_full_is_an_error(self.staged):
            self.staged.mkdir(parents=True)
        write_json(self._note, {INPUTS: self.inputs})

    @property
    def staged(self) -> Path:
        return staging_folder(self.target)

    def forget_staging(self) -> None:
        self._note.unlink(missing_ok=True)

    @property
    def _note(self) -> Path:
        return self.target.with_name(f".{self.target.name}.inputs")

    def _published_inputs(self) -> object:
        try:
            return TableHeader.read(self.target).origin.get(INPUTS)
        except CorruptFileError:
            return None

    def _staged_inputs(self) -> object:
        try:
            return read_json(self._note).get(INPUTS)
        except CorruptFileError:
            return None


def _remove_half_written(folder: Path) -> None:
    """A file that a kill cut short has another name than the whole one."""
    for path in folder.glob(f"*{HALF_WRITTEN}"):
        path.unlink()
