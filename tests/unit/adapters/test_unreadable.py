"""Files of an hPLM that the disk fails to read, or that shrink while they are mapped: that hPLM fails, no other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from backends.adapters.bank import HplmArtifact, weights_path
from backends.adapters.host_bank import HostBank
from backends.adapters.mapped import MappedPages, load_mapped
from backends.errors import ErrorCode, UnreadableFileError, UnusableError
from backends.home import Home
from backends.registry.entries import HplmEntry
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from backends.scheduling.settings import Capacity
from backends.storage import write_json
from served_engine import ask, keys_of, running

EIO = Path("/proc/self/mem")
"""Reading its first bytes fails with EIO."""


def artifact(bank: HostBank, home: Home, entry: HplmEntry) -> HplmArtifact:
    root = RootFolder(home.root("tiny"))
    return bank.artifact(entry, root.fingerprint, root.geometry.hidden_size, root.geometry.num_upper_layers)


def test_pages_of_a_file_that_shrank_are_an_exception(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    save_file({"a": torch.ones(3000), "b": torch.ones(5)}, path)
    tensors = load_mapped(path)
    pages = MappedPages.of(path, tensors.values())
    pages.require_readable()
    with path.open("r+b") as file:
        file.truncate(4096)
    with pytest.raises(UnreadableFileError, match=r"weights\.safetensors cannot be read, or was shortened"):
        pages.require_readable()
    assert tensors["a"][0] == 1  # its first page is there


@pytest.mark.parametrize("name", ["manifest.json", "weights.safetensors"])
def test_a_read_error_fails_that_hplm_once_in_a_while(
    tiny_home: Home, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    registry = Registry.open(tiny_home)
    bad, sound = registry.hplm("acme/topic"), registry.hplm("acme/mood")
    folder = tiny_home.path / bad.folder
    (folder / name).unlink()
    (folder / name).symlink_to(EIO)
    if name != "manifest.json":  # its size is compared first
        manifest = json.loads((folder / "manifest.json").read_text())
        del manifest["checksum"]
        write_json(folder / "manifest.json", {**manifest, "size_bytes": 0})
    bank = HostBank(tiny_home, lambda _: True)
    for _ in range(2):
        with pytest.raises(UnusableError, match="the weights of this hPLM are unreadable at present") as caught:
            artifact(bank, tiny_home, bad)
        assert caught.value.code is ErrorCode.UNAVAILABLE
    assert "cannot be read: Input/output error" in caplog.text
    assert artifact(bank, tiny_home, sound).hplm == "acme/mood"


def test_weights_that_shrink_under_a_running_engine_fail_their_rows_only(tiny_home: Home) -> None:
    keys = keys_of(tiny_home)
    registry = Registry.open(tiny_home)
    weights = weights_path(tiny_home.path / registry.hplm("acme/topic").folder)
    bad, *others = [keys[hplm] for hplm in ("acme/topic", "acme/mood", "globex/topic", "initech/mood")]
    with running(tiny_home, num_slots=2, capacity=Capacity(max_adapters=1)) as service:
        for key in (bad, *others):
            assert isinstance(ask(service, [key]).get(timeout=30), list)
        weights.chmod(0o644)
        content = weights.read_bytes()
        with weights.open("r+b") as file:
            file.truncate(0)
        pending = [(key, ask(service, [key])) for key in (bad, *others, bad)]
        for key, responses in pending:
            assert isinstance(responses.get(timeout=30), UnusableError if key == bad else list)
        weights.write_bytes(content)
        assert isinstance(ask(service, [bad]).get(timeout=30), list)
