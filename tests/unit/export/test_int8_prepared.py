"""Exports in int8 prepare each root, and `auto` takes int8 only where it changes little."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from backends.adapters.adapter_set import AdapterSet
from backends.adapters.bank import HplmArtifact
from backends.adapters.head import Head
from backends.adapters.pooling import NO_POOLING, PAIR_POOLING
from backends.engine import precision
from backends.engine.stack import UpperStack
from backends.errors import CorruptFileError
from backends.home import Home
from backends.registry.registry import Registry
from backends.root.int8_file import QUANTISATION_FORMAT_VERSION, Int8Fidelity, read_fidelity, read_smoothing
from backends.root.int8_instructions import int8_instructions
from backends.root.store import RootFolder
from backends.storage import read_json, write_json
from builder.construct.hplm.hplms import publish_artifact
from builder.export import chosen_dtype
from builder.export.in_force import settings_of
from builder.profiling import preparing_int8
from builder.profiling.preparing_int8 import Conditions, equal_labels, quantise_root, smoothing_of_states
from builder.progress import Step
from cli.hplm import show
from seeds import SEED

pytestmark = pytest.mark.skipif(int8_instructions() is None, reason="this CPU multiplies no int8")
Run = Callable[..., str]


def export(run_hplm: Run, home: Home, *options: str | Path) -> str:
    return run_hplm("export", "--home", home.path, *options)


def lose_corpus(home: Home) -> None:
    path = home.root("tiny") / "manifest.json"
    content = read_json(path)
    content["origin"]["config"]["corpus"] = ["gone.txt"]
    write_json(path, content)


def test_int8_is_prepared_measured_and_shown(
    tiny_home: Home, run_hplm: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    said = export(run_hplm, tiny_home, "--dtype", "int8")
    root = RootFolder(tiny_home.root("tiny"))
    smoothing = read_smoothing(root.path, root.fingerprint, root.geometry)
    fidelity = read_fidelity(root.path, root.fingerprint)
    assert smoothing and fidelity is not None and fidelity.texts >= 16
    assert 0.99 < fidelity.cosine < 1.0
    assert fidelity.equal_labels and all(0.9 < share <= 1.0 for share in fidelity.equal_labels.values())
    assert f"root tiny keeps a cosine of {fidelity.cosine:.4f}" in said
    hplm = next(iter(fidelity.equal_labels)).partition("@")[0]
    shown = json.loads(run_hplm("show", hplm, "--home", tiny_home.path, "--json"))
    assert shown["int8_equal_labels"] and shown["int8_instructions"] == int8_instructions()
    (root.path / "int8.json").write_bytes(b"damaged")
    show(hplm, tiny_home.path)
    assert "int8_equal_labels is not known: " in capsys.readouterr().err
    (root.path / "int8.json").unlink()
    assert "int8_equal_labels" not in run_hplm("show", hplm, "--home", tiny_home.path)


@pytest.fixture(autouse=True)
def without_amx(monkeypatch: pytest.MonkeyPatch) -> None:
    """With it `auto` takes bf16."""
    monkeypatch.setattr(precision, "has_amx", lambda: False)


def test_auto_takes_int8_only_where_it_changes_little(
    tiny_home: Home, run_hplm: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chosen_dtype, "LEAST_EQUAL_LABELS", 0.95)  # of the tiny models' labels some hang by a hair
    said = export(run_hplm, tiny_home, "--dtype", "auto")
    assert f"dtype int8: this processor has {int8_instructions()} instructions; root tiny" in said
    monkeypatch.setattr(chosen_dtype, "LEAST_COSINE", 1.0)
    assert "int8 changes too much: root tiny" in export(run_hplm, tiny_home, "--dtype", "auto")
    assert settings_of(tiny_home.repository)["upper dtype"] in ("bf16", "fp32")


def test_without_texts_auto_leaves_int8_out(tiny_home: Home, run_hplm: Run) -> None:
    lose_corpus(tiny_home)
    assert "what int8 changes is not known" in export(run_hplm, tiny_home, "--dtype", "auto")
    assert settings_of(tiny_home.repository)["upper dtype"] in ("bf16", "fp32")
    assert "name others with --int8-corpus" in export(run_hplm, tiny_home, "--dtype", "int8")
    assert settings_of(tiny_home.repository)["upper dtype"] == "int8"


def test_texts_can_be_named_and_what_was_measured_stays(tiny_home: Home, run_hplm: Run, tmp_path: Path) -> None:
    lose_corpus(tiny_home)
    corpus = tmp_path / "texts.txt"
    corpus.write_text("".join(f"the {number} red and green things\n" for number in range(20)))
    assert "on 20 texts" in export(run_hplm, tiny_home, "--dtype", "int8", "--int8-corpus", corpus)
    foreign = tmp_path / "foreign.txt"
    foreign.write_text("".join(f"{number} бледно-зелёных вещей\n" for number in range(20)))
    said = export(run_hplm, tiny_home, "--dtype", "int8", "--int8-corpus", foreign)
    assert int(re.search(r"has (\d+)% of their fragments", said)[1]) < 10  # type: ignore[index]
    assert "on 20 texts" in export(run_hplm, tiny_home, "--dtype", "int8", "--int8-corpus", corpus)
    said = export(run_hplm, tiny_home, "--dtype", "int8")
    assert "on 20 texts" in said and "measured before: root 'tiny': the files that it was made from are gone" in said
    with closing(Registry.open(tiny_home)) as registry:
        registry.delete_hplm("acme/topic")
    assert "what int8 changes is not known" in export(run_hplm, tiny_home, "--dtype", "auto")


@pytest.mark.parametrize("damage", [b"damaged", b'{"format_version": 99}'])
def test_without_texts_a_file_that_cannot_be_read_is_named_too(tiny_home: Home, run_hplm: Run, damage: bytes) -> None:
    lose_corpus(tiny_home)
    (tiny_home.root("tiny") / "int8.json").write_bytes(damage)
    for dtype in ("int8", "auto"):
        said = export(run_hplm, tiny_home, "--dtype", dtype)
        assert "name others with --int8-corpus; " in said and "tiny/int8.json " in said and "rendered" in said


def test_what_was_measured_depends_on_versions_domains_and_rounding(
    tiny_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Registry.open(tiny_home)) as registry:
        own = Conditions.of(registry, "tiny")
    assert own.checksum == replace(own).checksum
    first, *others = own.compared
    updated = replace(own, compared=[replace(first, key=first.key + 1000), *others])
    moved = replace(own, compared=[replace(first, domain=replace(first.domain, version=9)), *others])
    general = replace(own, general=replace(own.general, version=9))
    cases = own, updated, moved, general
    here = {one.checksum for one in cases}
    monkeypatch.setattr(preparing_int8, "rounding_of", lambda _: "as another processor")
    assert len(here | {one.checksum for one in cases}) == 2 * len(cases)


def test_what_is_measured_is_what_is_served(tiny_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Upper layers with the smoothing that is stored, and lower layers in the same dtype."""
    lower, smoothings = list[str](), list[Any]()
    exact_lower, stack = preparing_int8.exact_lower, preparing_int8.UpperStack

    def noted_lower(home: Home, domain: Any, dtype: Any) -> Any:
        lower.append(dtype)
        return exact_lower(home, domain, dtype)

    def noted_stack(root: RootFolder, settings: Any, smoothing: Any) -> UpperStack:
        smoothings.append((settings.dtype, smoothing))
        return stack(root, settings, smoothing=smoothing)

    monkeypatch.setattr(preparing_int8, "exact_lower", noted_lower)
    monkeypatch.setattr(preparing_int8, "UpperStack", noted_stack)
    with closing(Registry.open(tiny_home)) as registry:
        quantise_root(tiny_home, registry, "tiny", [])
    assert lower.count("int8") == lower.count("fp32") > 1
    root = RootFolder(tiny_home.root("tiny"))
    stored = read_smoothing(root.path, root.fingerprint, root.geometry)
    (of_int8,) = (smoothing for dtype, smoothing in smoothings if dtype == "int8")
    assert stored is not None and of_int8.keys() == stored.keys()
    for name, channels in stored.items():
        torch.testing.assert_close(of_int8[name], channels, rtol=1e-4, atol=0)


def test_what_has_no_smoothing_beside_it_is_measured_again(tiny_home: Home, run_hplm: Run) -> None:
    export(run_hplm, tiny_home, "--dtype", "int8")
    root = RootFolder(tiny_home.root("tiny"))
    path = root.path / "int8.json"
    own = read_json(path)
    for part in ({"smoothing": {}}, {"fidelity": {**own["fidelity"], "cosine": 7.0}}):
        write_json(path, {**own, **part})
        assert "root tiny keeps a cosine of 0.9" in export(run_hplm, tiny_home, "--dtype", "int8")
        assert read_json(path) == own


def test_a_file_that_cannot_be_replaced_stops_no_export(tiny_home: Home, run_hplm: Run) -> None:
    (tiny_home.root("tiny") / "int8.json").mkdir()
    for dtype, said in (("auto", "what int8 changes is not known of root tiny"), ("int8", "is not prepared for int8")):
        printed = export(run_hplm, tiny_home, "--dtype", dtype)
        assert said in printed and "rendered" in printed and "Traceback" not in printed


def test_an_export_says_that_a_server_reads_what_is_prepared_anew_when_it_starts(
    tiny_home: Home, run_hplm: Run, tmp_path: Path
) -> None:
    export(run_hplm, tiny_home, "--dtype", "int8")
    assert "no setting changed" in export(run_hplm, tiny_home, "--dtype", "int8")
    corpus = tmp_path / "texts.txt"
    corpus.write_text("".join(f"the {number} red and green things\n" for number in range(20)))
    said = export(run_hplm, tiny_home, "--dtype", "int8", "--int8-corpus", corpus)
    assert "root tiny is prepared anew for int8" in said and "until it is restarted" in said
    with closing(Registry.open(tiny_home)) as registry:
        registry.delete_hplm("acme/topic")
    said = export(run_hplm, tiny_home, "--dtype", "int8", "--int8-corpus", corpus)
    assert "no setting changed" in said, "other hPLMs are compared, with the same smoothing"


def test_progress_is_shown_and_what_is_unchanged_is_not_measured_again(
    tiny_home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = tmp_path / "texts.txt"
    corpus.write_text("".join(f"the {number} red and green things\n" for number in range(20)))
    steps: list[Step] = []

    def prepared(*texts: Path) -> tuple[Int8Fidelity, set[str]]:
        """Return what is stored afterwards, and the phases that came to their ends."""
        steps.clear()
        fidelity = quantise_root(tiny_home, registry, "tiny", texts, steps.append)
        root = RootFolder(tiny_home.root("tiny"))
        assert fidelity == read_fidelity(root.path, root.fingerprint)
        return fidelity, {step.phase for step in steps if step.done == step.total}

    with closing(Registry.open(tiny_home)) as registry:
        first, phases = prepared()
        assert phases == {step.phase for step in steps} and "tiny: compare hPLMs" in phases
        assert prepared() == (first, {"tiny: read texts"})
        others, again = prepared(corpus)
        assert others.texts == 20 and again == phases
        assert prepared(corpus) == (others, {"tiny: read texts"})
        registry.delete_hplm("acme/topic")
        without, again = prepared(corpus)
        assert "acme/topic@1" in others.equal_labels.keys() - without.equal_labels.keys() and again == phases
        monkeypatch.setattr(preparing_int8, "rounding_of", lambda _: "as another processor")
        assert prepared(corpus)[1] == phases


def test_what_another_root_left_is_measured_anew(tiny_home: Home, run_hplm: Run) -> None:
    export(run_hplm, tiny_home, "--dtype", "int8")
    root = RootFolder(tiny_home.root("tiny"))
    path, own = root.path / "int8.json", read_fidelity(root.path, root.fingerprint)
    write_json(path, read_json(path) | {"root_fingerprint": "of another root", "smoothing": {}})
    assert "root tiny keeps a cosine of" in export(run_hplm, tiny_home, "--dtype", "int8")
    assert read_fidelity(root.path, root.fingerprint) == own


@pytest.mark.parametrize("dtype", ["int8", "auto"])
def test_what_a_newer_release_measured_stays(tiny_home: Home, run_hplm: Run, dtype: str) -> None:
    export(run_hplm, tiny_home, "--dtype", "int8")
    path = tiny_home.root("tiny") / "int8.json"
    write_json(path, read_json(path) | {"format_version": QUANTISATION_FORMAT_VERSION + 1})
    before = path.read_bytes()
    said = export(run_hplm, tiny_home, "--dtype", dtype)
    assert f"this release reads up to {QUANTISATION_FORMAT_VERSION}" in said and "Traceback" not in said
    assert path.read_bytes() == before
    assert settings_of(tiny_home.repository)["upper dtype"] in (["int8"] if dtype == "int8" else ["bf16", "fp32"])


@pytest.mark.parametrize("count", [0, 15])
def test_too_few_texts_are_an_error(tiny_home: Home, run_hplm: Run, tmp_path: Path, count: int) -> None:
    corpus = tmp_path / "texts.txt"
    corpus.write_text("".join(f"text {number}\n" for number in range(count)) * 2)
    said = export(run_hplm, tiny_home, "--dtype", "int8", "--int8-corpus", corpus)
    assert f"int8 is measured on at least 16 different texts, not {count}" in said
    assert not (tiny_home.root("tiny") / "int8.json").exists()
    assert "at least 16 different texts" in export(run_hplm, tiny_home, "--dtype", "auto", "--int8-corpus", corpus)
    assert "for --dtype int8 and auto, not bf16" in export(run_hplm, tiny_home, "--int8-corpus", corpus)
    assert "--slots must be" in export(run_hplm, tiny_home, "--dtype", "int8", "--slots", "0")


@pytest.mark.parametrize(
    ("equal", "keeps"),
    [
        ({}, True),
        ({"a/b@1": (0, 16)}, False),
        ({"a/b@1": (15, 16)}, True),
        ({"a/b@1": (14, 16)}, False),
        ({"a/b@1": (960, 960), "a/tagger@1": (1, 2)}, True),
        ({"a/b@1": (960, 960), "a/tagger@1": (70, 100)}, False),
    ],
)
def test_the_labels_that_stay_decide(equal: dict[str, tuple[int, int]], keeps: bool) -> None:
    """All of them together: one of an hPLM that has two is no half of its root's."""
    shares = {hplm: of / count for hplm, (of, count) in equal.items()}
    counts = {hplm: count for hplm, (_, count) in equal.items()}
    assert chosen_dtype._keeps_enough(Int8Fidelity(0.999, shares, 16, num_labels=counts)) is keeps


def test_labels_of_words_outside_entities_do_not_count() -> None:
    """Nor those of special tokens and of pieces within words."""
    head = Head(torch.zeros(3, 8), torch.zeros(3))
    tagger = HplmArtifact("acme/drugs", "root", "ner", ("B-drug", "I-drug", "O"), NO_POOLING, AdapterSet(), head)
    words = torch.tensor([1, 2, 3, 5, 6, 7], dtype=torch.int32)
    exact = torch.eye(3)[[0, 2, 0, 1, 0, 2, 2, 2, 1]]
    # Of token 3 an entity is lost, of 6 one is found; 0, 4 and 8 are no words.
    ours = torch.eye(3)[[1, 2, 0, 2, 1, 2, 0, 2, 0]]
    assert equal_labels(tagger, [ours], [exact], [words]) == (1, 3)
    outside = [torch.eye(3)[[2, 2, 2]]]
    assert equal_labels(tagger, outside, outside, [torch.tensor([1], dtype=torch.int32)]) == (0, 0)
    sorter = HplmArtifact("acme/topic", "root", "classification", ("a", "b", "c"), "cls", AdapterSet(), head)
    assert equal_labels(sorter, [*torch.eye(3)], [torch.eye(3)[0]] * 3, [words] * 3) == (1, 3)


def test_hplms_of_pairs_are_compared_on_pairs(tiny_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    assert preparing_int8._pairs(["a", "b", "c"]) == [("a", "c"), ("b", "b"), ("c", "b")]
    torch.manual_seed(SEED)
    root, run, middles = RootFolder(tiny_home.root("tiny")), UpperStack.run, list[int | None]()
    head = Head(torch.randn(2, 4 * root.geometry.hidden_size), torch.zeros(2))
    labels = ("like", "unlike")
    alike = HplmArtifact(
        "acme/alike", root.fingerprint, "classification", labels, PAIR_POOLING, AdapterSet(), head, pair=True
    )

    def noted(stack: UpperStack, *arguments: Any) -> list[torch.Tensor]:
        middles.extend(arguments[2])
        return run(stack, *arguments)

    monkeypatch.setattr(UpperStack, "run", noted)
    with closing(Registry.open(tiny_home)) as registry:
        publish_artifact(tiny_home, registry, alike, registry.hplm("acme/mood").domain, {})
        fidelity = quantise_root(tiny_home, registry, "tiny", [])
    assert 0.8 < fidelity.equal_labels["acme/alike@1"] <= 1.0
    # In int8 and in fp32, each text in one pair; all other rows are single texts.
    assert sum(middle is not None for middle in middles) == 2 * fidelity.texts


def test_a_damaged_hplm_is_left_out_and_named(tiny_home: Home, run_hplm: Run) -> None:
    with closing(Registry.open(tiny_home)) as registry:
        entry = next(entry for entry in registry.hplms() if entry.task == "classification" and not entry.pair)
    whole = (tiny_home.path / entry.folder / "weights.safetensors").read_bytes()
    (tiny_home.path / entry.folder / "weights.safetensors").write_bytes(b"damaged")
    said = export(run_hplm, tiny_home, "--dtype", "int8")
    assert f"cannot be read: {entry.id}@{entry.version}" in said and "rendered" in said
    (tiny_home.path / entry.folder / "weights.safetensors").write_bytes(whole)
    assert "cannot be read" not in export(run_hplm, tiny_home, "--dtype", "int8")


def test_a_damaged_domain_costs_its_own_hplms_only(tiny_home: Home, run_hplm: Run) -> None:
    with closing(Registry.open(tiny_home)) as registry:
        folder = registry.hplm("acme/topic").domain.folders[0]
    shutil.rmtree(tiny_home.path / folder)
    said = export(run_hplm, tiny_home, "--dtype", "int8")
    assert "cannot be read: acme/mood@1, acme/topic@1" in said and "rendered" in said
    root = RootFolder(tiny_home.root("tiny"))
    fidelity = read_fidelity(root.path, root.fingerprint)
    assert fidelity is not None and fidelity.equal_labels.keys() == {"globex/topic@1", "initech/mood@1"}


@pytest.mark.parametrize("dtype", ["int8", "auto"])
def test_a_damaged_root_does_not_keep_others_from_an_export(tiny_home: Home, run_hplm: Run, dtype: str) -> None:
    (tiny_home.root("tiny") / "upper.safetensors").write_bytes(b"damaged")
    said = export(run_hplm, tiny_home, "--dtype", dtype)
    assert "upper.safetensors" in said and "Traceback" not in said
    assert ("is not prepared for int8" if dtype == "int8" else "what int8 changes is not known of root tiny") in said
    assert settings_of(tiny_home.repository)["upper dtype"] in (["int8"] if dtype == "int8" else ["bf16", "fp32"])


def test_texts_that_are_often_repeated_are_still_found(tiny_home: Home, run_hplm: Run, tmp_path: Path) -> None:
    corpus = tmp_path / "texts.txt"
    corpus.write_text("".join(f"Question:\nthe {number} red and green things\n" for number in range(480)))
    assert "on 96 texts" in export(run_hplm, tiny_home, "--dtype", "int8", "--int8-corpus", corpus)


def test_hplms_that_are_compared_are_spread_over_all() -> None:
    assert preparing_int8._spread(range(5), 32) == list(range(5))
    spread = preparing_int8._spread(range(1000), 32)
    assert len(set(spread)) == 32 and spread[-1] > 900


def test_smoothing_balances_inputs_and_weights(tiny_home: Home) -> None:
    root = RootFolder(tiny_home.root("tiny"))
    size = root.geometry.hidden_size
    rows = [torch.randn(12, size) for _ in range(4)]
    large = [row.clone() for row in rows]
    for row in large:
        row[:, 3] *= 100
    usual, found = smoothing_of_states(root, rows), smoothing_of_states(root, large)
    ratio = found[0, "query_key_value"] / usual[0, "query_key_value"]
    assert ratio[3] / ratio[[*range(3), *range(4, size)]].median() == pytest.approx(10, rel=0.05)


def test_smoothing_of_channels_beyond_all_scales(tiny_home: Home) -> None:
    """The factors stay in their range. Infinite states raise."""
    root = RootFolder(tiny_home.root("tiny"))
    rows = [torch.randn(12, root.geometry.hidden_size) for _ in range(4)]
    for row in rows:
        row[:, 3] *= 1e9
    found = smoothing_of_states(root, rows)[0, "query_key_value"]
    assert found.isfinite().all() and found.max() == found[3] == 64
    rows[0][0, 0] = torch.inf
    with pytest.raises(CorruptFileError, match=r"states of .* are NaN or infinite"):
        smoothing_of_states(root, rows)
