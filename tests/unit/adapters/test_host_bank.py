"""What is mapped of the bank: what was asked for, and nothing that is gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backends.adapters import host_bank
from backends.adapters.bank import HplmArtifact, read_artifact, weights_path
from backends.adapters.host_bank import HostBank
from backends.errors import UnusableError
from backends.home import Home
from backends.registry.entries import HplmEntry
from backends.registry.registry import Registry
from backends.registry.snapshot import RegistrySnapshot
from backends.root.store import RootFolder


def is_mapped(home: Home, entry: HplmEntry) -> bool:
    return str(home.path / entry.folder) in Path("/proc/self/maps").read_text()


def test_versions_that_are_gone_are_not_mapped_any_more(tiny_home: Home) -> None:
    registry = Registry.open(tiny_home)
    snapshot = RegistrySnapshot(registry, retired_kept_s=0.0, refresh_interval_s=3600)
    bank = HostBank(tiny_home, snapshot.knows, unmap_every_s=0.0)
    stays, goes = snapshot.find("acme/topic"), snapshot.find("acme/mood")
    root = RootFolder(tiny_home.root("tiny"))
    for entry in (stays, goes):
        bank.artifact(entry, root.fingerprint, root.geometry.hidden_size, root.geometry.num_upper_layers)
    bank.unmap_unknown()
    assert is_mapped(tiny_home, stays)
    assert is_mapped(tiny_home, goes)
    registry.delete_hplm(goes.id)
    snapshot.refresh()
    bank.unmap_unknown()
    assert is_mapped(tiny_home, stays)
    assert not is_mapped(tiny_home, goes)
    snapshot.close()


def test_what_is_gone_is_looked_for_now_and_then_only(tiny_home: Home) -> None:
    registry = Registry.open(tiny_home)
    entry = registry.hplm("acme/topic")
    root = RootFolder(tiny_home.root("tiny"))
    asked: list[int] = []
    bank = HostBank(tiny_home, lambda key: bool(asked.append(key)), unmap_every_s=3600)
    bank.artifact(entry, root.fingerprint, root.geometry.hidden_size, root.geometry.num_upper_layers)
    for _ in range(3):
        bank.unmap_unknown()
    assert asked == []
    assert is_mapped(tiny_home, entry)


def test_damaged_weights_are_read_again_when_they_change(tiny_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry.open(tiny_home)
    damaged, sound = registry.hplm("acme/topic"), registry.hplm("acme/mood")
    weights = weights_path(tiny_home.path / damaged.folder)
    weights.chmod(0o644)
    content = weights.read_bytes()
    weights.write_bytes(content[:-1])
    root = RootFolder(tiny_home.root("tiny"))
    read: list[Path] = []

    def counted(folder: Path, *args: Any, **kwargs: Any) -> HplmArtifact:
        read.append(folder)
        return read_artifact(folder, *args, **kwargs)

    monkeypatch.setattr(host_bank, "read_artifact", counted)
    bank = HostBank(tiny_home, lambda _: True)
    for _ in range(3):
        with pytest.raises(UnusableError, match="the weights of this hPLM are damaged"):
            bank.artifact(damaged, root.fingerprint, root.geometry.hidden_size, root.geometry.num_upper_layers)
    bank.artifact(sound, root.fingerprint, root.geometry.hidden_size, root.geometry.num_upper_layers)
    assert read == [tiny_home.path / damaged.folder, tiny_home.path / sound.folder]
    weights.write_bytes(content)
    bank.artifact(damaged, root.fingerprint, root.geometry.hidden_size, root.geometry.num_upper_layers)
