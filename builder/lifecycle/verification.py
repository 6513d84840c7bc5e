"""Whether all that servers read of what the registry names is on the disk as it was written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from backends.adapters.bank import read_artifact
from backends.errors import HplmError
from backends.home import Home
from backends.lower.encoder import has_own_layers, verify_layers
from backends.plot.header import TableHeader
from backends.plot.table import Table
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from backends.storage import read_json
from builder.progress import Report, Step

_PHASE = "read and compare"


@dataclass(frozen=True)
class Damage:
    """A folder, relative to the home, and what is wrong with it."""

    folder: str
    complaint: str


@dataclass(frozen=True)
class Verification:
    num_folders: int
    damaged: tuple[Damage, ...]


def verify_home(home: Home, registry: Registry, report: Report) -> Verification:
    """Read every root, table and hPLM once, live or kept, and compare it with the checksums beside it."""
    folders = sorted(registry.known_folders())
    damaged = []
    for number, folder in enumerate(folders, start=1):
        try:
            _READERS[Path(folder).parts[0]](home.path / folder)
        except (HplmError, OSError) as error:
            damaged.append(Damage(folder, str(error).replace(f"{home.path}/", "")))
        except (KeyError, TypeError, ValueError) as error:
            damaged.append(Damage(folder, f"its manifest is not one: {error!r}"))
        report(Step(_PHASE, number, len(folders), f"{len(damaged)} damaged" if damaged else ""))
    return Verification(len(folders), tuple(damaged))


def _read_root(folder: Path) -> None:
    RootFolder(folder).verify()


def _read_table(folder: Path) -> None:
    with Table.open(folder, TableHeader.read(folder).spec.root_fingerprint) as table:
        table.verify()
    if has_own_layers(folder):
        verify_layers(folder)


def _read_hplm(folder: Path) -> None:
    read_artifact(folder, read_json(folder / "manifest.json")["root_fingerprint"])


_READERS: Mapping[str, Callable[[Path], None]] = MappingProxyType(
    {"roots": _read_root, "plots": _read_table, "bank": _read_hplm}
)
