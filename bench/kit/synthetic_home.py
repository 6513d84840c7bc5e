"""A home of BERT-base geometry with thousands of hPLMs, made in seconds: random weights, written through the writers.

The tables hold the fragments of the bench's own texts. The hPLMs are hard links to few weight files, each with the
manifest of its own name, so that ten thousand of them take the disk and the page cache of few.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from backends.adapters.bank import write_artifact
from backends.adapters.ladder import Ladder, write_ladder
from backends.adapters.recipe import AdapterRecipe
from backends.home import Home
from backends.plot import Store, TableSpec, fragment_keys
from backends.registry.entries import DomainEntry
from backends.registry.registry import Registry
from backends.root.geometry import RootGeometry
from backends.root.store import RootFolder, write_root
from backends.storage import json_checksum, publishing, read_json
from bench.kit.bulk import NewHplm, register_hplms
from bench.kit.random_root import BERT_BASE_UPPER, BOTTLENECK, random_hplm, random_parts
from bench.kit.random_table import write_table

ROOT = "base"
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_LETTERS = "bcdfghjklmnpqrstvwxz"
_VOWELS = "aeiou"
_APPENDED_AT_ONCE = 8192
MANIFEST = "manifest.json"

BERT_BASE = replace(BERT_BASE_UPPER, vocab_size=30_522, num_lower_layers=6, max_tokens=128)
SMALL = replace(BERT_BASE, vocab_size=2_000, hidden_size=256, intermediate_size=1024, num_heads=4)
"""For runs that must be quick: the same number of layers, a ninth of the multiply-adds."""
MIDDLE = replace(BERT_BASE, vocab_size=2_000, hidden_size=512, intermediate_size=2048, num_heads=8)
"""Between them, where the time of computing must outweigh that of taking requests in."""
MINILM = replace(BERT_BASE, hidden_size=384, intermediate_size=1536, num_lower_layers=3, num_upper_layers=3)
"""The demo's."""


@dataclass(frozen=True)
class Words:
    """A vocabulary of words that are one token each."""

    vocab_size: int

    @cached_property
    def words(self) -> list[str]:
        """Short, pronounceable, all different."""
        syllables = [letter + vowel for letter in _LETTERS for vowel in _VOWELS]
        numbers = range(self.vocab_size - len(SPECIAL))
        base = len(syllables)
        return [syllables[n // base**2] + syllables[n // base % base] + syllables[n % base] for n in numbers]

    def text(self, rng: np.random.Generator, num_tokens: int) -> str:
        """A text of so many tokens, [CLS] and [SEP] among them."""
        return " ".join(self.words[number] for number in rng.integers(len(self.words), size=num_tokens - 2))

    def write_tokenizer(self, path: Path) -> Path:
        vocabulary = {word: number for number, word in enumerate((*SPECIAL, *self.words))}
        tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
        tokenizer.save(str(path))
        return path


@dataclass(frozen=True)
class Family:
    """hPLMs that are alike; `name` is their tenant's."""

    root: str
    name: str
    count: int
    recipe: AdapterRecipe = BOTTLENECK
    distinct: int = 16
    ladder: Ladder | None = None

    @property
    def hplms(self) -> list[str]:
        return [f"{self.name}{number}/task" for number in range(self.count)]


class BaseHome:
    """Builds the home; roots first, then families of hPLMs on them."""

    def __init__(self, path: Path, seed: int) -> None:
        self.home = Home(path)
        self._rng = np.random.default_rng(seed)
        self._generator = torch.Generator().manual_seed(seed)
        Registry.open(self.home, create=True).close()

    def add_root(
        self, name: str, geometry: RootGeometry, texts: Sequence[str], num_lower_layers: int = 1
    ) -> DomainEntry:
        """A root and its first domain, whose table holds what the texts need; without texts, single tokens only.

        One lower layer will do where the texts are all that is asked: lower layers run only for missing fragments.
        """
        path = self.home.root(name)
        parts = random_parts(replace(geometry, num_lower_layers=num_lower_layers), self._generator)
        with publishing(path) as folder:
            tokenizer = Words(geometry.vocab_size).write_tokenizer(self.home.path / "tokenizer.json")
            fingerprint = write_root(folder, name, geometry, tokenizer, parts, {}, {})
            tokenizer.unlink()
        table = self.home.plot(name, name, 1)
        self._write_table(table, TableSpec(f"{name}@1", fingerprint, geometry.hidden_size, geometry.vocab_size), texts)
        registry = Registry.open(self.home)
        folders = self.home.relative(path), name, self.home.relative(table)
        domain = registry.publish_root(name, fingerprint, *folders, {})
        registry.close()
        return domain

    def add_hplms(self, family: Family) -> list[str]:
        root = RootFolder(self.home.root(family.root))
        models = [self._write_model(family, root, number) for number in range(min(family.distinct, family.count))]
        folders = [
            self._link_model(family, hplm, models[number % len(models)]) for number, hplm in enumerate(family.hplms)
        ]
        self._register(family, folders)
        return family.hplms

    def _write_table(self, target: Path, spec: TableSpec, texts: Sequence[str]) -> None:
        block = self._rng.standard_normal((_APPENDED_AT_ONCE, 3, spec.hidden_size), np.float32).astype(np.float16)
        stores = {Store.UNI: np.arange(spec.vocab_size, dtype=np.uint64)}
        if texts:
            tokens = RootFolder(self.home.root(target.parent.name)).tokenizer().encode(texts)
            stores[Store.TRI] = np.unique(fragment_keys(tokens.token_ids, tokens.row_offsets))
        write_table(target, spec, stores, block)

    def _write_model(self, family: Family, root: RootFolder, number: int) -> Path:
        target = self.home.bank(family.root, f"model/{family.name}{number}", 1)
        with publishing(target) as folder:
            write_artifact(folder, random_hplm(root, self._generator, family.recipe, family.hplms[number]))
        return target

    def _link_model(self, family: Family, hplm: str, model: Path) -> Path:
        """The files of a model under another name; not made durable, as the home does not outlive the bench."""
        target = self.home.bank(family.root, hplm, 1)
        target.mkdir(parents=True)
        link_or_copy(model / "weights.safetensors", target / "weights.safetensors")
        manifest = copy_manifest(model, target, hplm)
        if family.ladder is not None:
            write_ladder(target, family.ladder, manifest["root_fingerprint"])
        return target

    def _register(self, family: Family, folders: Sequence[Path]) -> None:
        registry = Registry.open(self.home)
        domain, labels = registry.domain(family.root, family.root), read_json(folders[0] / "manifest.json")["labels"]
        registry.close()
        ladder = family.ladder
        metrics = {} if ladder is None else {"levels": [*ladder.levels], "ladder": dict(ladder.certified)}
        register_hplms(
            self.home,
            [
                NewHplm(hplm, domain, self.home.relative(folder), "classification", labels, metrics)
                for hplm, folder in zip(family.hplms, folders, strict=True)
            ],
        )


@dataclass(frozen=True)
class TenantHome:
    """A home of one root, `base`, its tenants' hPLMs, and texts by their number of tokens."""

    home: Home
    hplms: Sequence[str]
    texts: Mapping[int, Sequence[str]]


@contextmanager
def base_home(seed: int) -> Iterator[BaseHome]:
    """An empty one, which lives as long as the block."""
    with tempfile.TemporaryDirectory(prefix="hplm-bench-") as folder:
        yield BaseHome(Path(folder) / "home", seed)


@contextmanager
def tenant_home(
    geometry: RootGeometry,
    tenants: int,
    lengths: Iterable[int],
    seed: int,
    texts: int = 128,
    recipe: AdapterRecipe = BOTTLENECK,
    ladder: Ladder | None = None,
) -> Iterator[TenantHome]:
    """With so many texts of each length; a ladder is that of every hPLM."""
    rng, words = np.random.default_rng(seed), Words(geometry.vocab_size)
    by_length = {length: [words.text(rng, length) for _ in range(texts)] for length in lengths}
    with base_home(seed) as base:
        base.add_root(ROOT, geometry, [text for of_length in by_length.values() for text in of_length])
        yield TenantHome(base.home, base.add_hplms(Family(ROOT, "tenant", tenants, recipe, ladder=ladder)), by_length)


def link_or_copy(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def copy_manifest(model: Path, target: Path, hplm: str) -> dict[str, Any]:
    """Write a model's manifest under the name of another hPLM, without waiting for the disk; returns it."""
    manifest = {**read_json(model / MANIFEST), "hplm": hplm}
    content = json.dumps({**manifest, "checksum": json_checksum(manifest)}, sort_keys=True)
    (target / MANIFEST).write_text(content, encoding="utf-8")
    return manifest
