"""A small home to import into."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models
from transformers import BertModel

from backends.adapters.bank import HplmArtifact, read_artifact
from backends.engine.stack import StackSettings, UpperStack
from backends.home import Home
from backends.registry.entries import HplmEntry
from backends.registry.registry import Registry
from backends.root.store import RootFolder, write_root
from bench.kit.tiny_home import ignore
from builder.construct.root.conversion import convert
from builder.construct.root.model_folder import weights_checksum
from builder.importing.hplms import import_hplm
from short_requests import adapter_import

LOWER = 2


class Importer:
    """A home with one root, made from a model without distillation, and the engine over what was imported into it."""

    def __init__(self, home: Home, model: Path) -> None:
        self.home, self.model = home, model
        self.registry = Registry.open(home, create=True)
        folder = home.root("plain")
        folder.mkdir(parents=True)
        parts = convert(model, LOWER, max_tokens=32)
        tokenizer = folder.parent / "tokenizer.json"
        Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]")).save(str(tokenizer))
        origin = {"source": str(model), "weights_checksum": weights_checksum(model)}
        fingerprint = write_root(folder, "plain", parts.geometry, tokenizer, parts.modules(), origin, {})
        self.registry.publish_root("plain", fingerprint, home.relative(folder), "general", "plots/none", {})
        self.root = RootFolder(folder)

    def take(self, folder: Path, name: str = "acme/x", base: Path | None = None, **changes: Any) -> HplmEntry:
        """Import a folder, as the labels a, b, c where nothing else is said."""
        request = adapter_import(name, "plain", None, folder, **{"labels": list("abc"), **changes})
        return import_hplm(self.home, self.registry, request, ignore, base)

    def artifact(self, entry: HplmEntry) -> HplmArtifact:
        return read_artifact(self.home.path / entry.folder, self.root.fingerprint)

    def logits(self, asked: list[tuple[HplmEntry, torch.Tensor]]) -> list[torch.Tensor]:
        """Rows of any hPLMs in one batch through the engine, in fp32."""
        stack = UpperStack(self.root, StackSettings(dtype="fp32"))
        ready = [stack.ready(entry.key, lambda entry=entry: self.artifact(entry)) for entry, _ in asked]  # type: ignore[misc]
        return stack.run(stack.pack([row for _, row in asked], ready), ready)


def round_model(model: Path, folder: Path) -> Path:
    """The model in fp16, as a root keeps it, so that what remains is the difference between two implementations."""
    BertModel.from_pretrained(model).half().save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes((model / "tokenizer.json").read_bytes())
    return folder
