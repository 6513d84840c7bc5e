"""Roots of other fragments and other families, from model to lookup: the tables give what the layers compute."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from backends.home import Home
from backends.lower.model import LowerModel
from backends.plot import PlotChain, Table
from backends.plot.header import stores_of
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from bench.kit.tiny_home import MAX_TOKENS, ignore, sample_texts, write_corpus
from builder.construct.root.conversion import RootParts
from builder.construct.root.roots import add_root
from builder.construct.root.student import Student
from builder.settings.root import DistilSettings
from family_models import write_family_model
from short_requests import new_root

ROOTS = [("roberta", 5), ("distilbert", 2), ("electra-small", 3)]


@pytest.fixture(scope="module", params=ROOTS, ids=lambda root: f"{root[0]}-{root[1]}")
def home(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Home:
    family, n = request.param
    folder = tmp_path_factory.mktemp("shapes")
    model = write_family_model(folder / "model", family)
    settings = DistilSettings(steps=3, tokens_per_batch=512)
    corpus = write_corpus(folder / "corpus.txt", 300, seed=1)
    home = Home(folder / "home")
    root = new_root("r", str(model), 2, (corpus,), MAX_TOKENS, n, distil=settings)
    add_root(home, Registry.open(home, create=True), root, ignore)
    return home


def opened(home: Home) -> tuple[Student, LowerModel]:
    root = RootFolder(home.root("r"))
    parts = RootParts(root.geometry, root.lower(), root.aggregation(), root.upper())
    return Student(parts, root.tokenizer()), LowerModel.open(home, Registry.open(home).domain("r", "general"))


def test_texts_of_the_corpus_are_exact(home: Home) -> None:
    student, half = opened(home)
    texts = [text.text for text in sample_texts(300, seed=1)][1:40]  # the first is held out
    encoded = half.encode(texts)
    assert next(iter(encoded.statistics.rates().values())) == 1.0
    rows = student.rows(texts)
    boundary = student.states(rows, rows.fragments)[0]
    np.testing.assert_allclose(np.concatenate(encoded.rows), boundary.detach().numpy(), rtol=0, atol=1e-2)


def test_what_is_missing_is_shortened(home: Home) -> None:
    """Each fragment as the level that answered it has it, computed by the layers."""
    student, half = opened(home)
    texts = [text.text for text in sample_texts(60, seed=77)]
    encoded = half.encode(texts)
    rows = student.rows(texts)
    root = RootFolder(home.root("r"))
    tokens = root.tokenizer().encode(texts)
    with Table.open(home.plot("r", "general", 1), root.fingerprint) as table:
        levels = PlotChain([table]).resolve(tokens.token_ids, tokens.row_offsets).levels
    n = rows.fragments.shape[1]
    fragments = torch.zeros_like(rows.fragments)
    for level, store in enumerate(stores_of(n)):
        answered, slots = torch.from_numpy(levels == level), store.slots(n)
        fragments[answered, slots] = rows.fragments[answered, slots]
    assert len(np.unique(levels)) > 1
    boundary = student.states(rows, fragments)[0]
    np.testing.assert_allclose(np.concatenate(encoded.rows), boundary.detach().numpy(), rtol=0, atol=1e-2)
