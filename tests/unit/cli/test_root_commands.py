"""`hplm root`: a recipe in a file, options before it, and the recipe and its fidelity read back."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from backends.home import Home
from bench.kit.tiny_home import MAX_TOKENS, write_corpus

Run = Callable[..., str]


@pytest.fixture
def run(run_hplm: Run) -> Run:
    return run_hplm


def test_a_recipe_from_file_to_root_and_back(run: Run, tiny_bert: Path, tmp_path: Path) -> None:
    corpus, foreign = write_corpus(tmp_path / "corpus.txt", 400, 1), write_corpus(tmp_path / "foreign.txt", 50, 9)
    recipe = tmp_path / "root.toml"
    recipe.write_text(
        f"source = {json.dumps(str(tiny_bert))}\nlower = 1\nn = 2\nmax_tokens = {MAX_TOKENS}\n"
        'corpus = ["corpus.txt"]\nheld_out = ["foreign.txt"]\n'
        "[distil]\nsteps = 3\ntokens_per_batch = 512\ntrain_upper = true\n[plot]\nmax_fragments = 40\n"
    )
    home = ("--home", tmp_path / "home")
    run("root", "add", "r", "--config", recipe, "--lower", "2", "--seed", "5", *home)
    shown = json.loads(run("root", "show", "r", "--json", *home))
    assert 0 < shown["fidelity"]["final_cosine"] <= 1
    assert shown["fidelity"]["files"]["foreign.txt"]["final_cosine"] == shown["fidelity"]["final_cosine"]
    assert shown["distillation"]["seconds"] >= 0
    assert {"cores", "cpu", "texts"} <= set(shown["distillation"])
    assert shown["n"] == shown["config"]["n"] == 2
    assert shown["config"]["lower"] == 2
    assert shown["config"]["distil"]["seed"] == 5
    assert shown["config"]["plot"] == {"theta": 1.0, "max_fragments": 40, "max_bigrams": 100_000}
    assert shown["config"]["corpus"] == [str(corpus)]
    assert "foreign" in run("root", "show", "r", *home)

    written = run("root", "config", "r", *home)
    assert tomllib.loads(written) == shown["config"] == json.loads(run("root", "config", "r", "--json", *home))
    (tmp_path / "again.toml").write_text(written)
    run("root", "add", "again", "--config", tmp_path / "again.toml", *home)
    again = json.loads(run("root", "show", "again", "--json", *home))
    assert again["fingerprint"] == shown["fingerprint"]

    assert "0." in run("root", "export", "r", tmp_path / "r.safetensors", *home)
    assert "exists already" in run("root", "export", "r", tmp_path / "r.safetensors", *home)
    learnt = ("--distilled", tmp_path / "r.safetensors")
    run(
        "root",
        "add",
        "same",
        "--from",
        tiny_bert,
        "--lower",
        "2",
        "--n",
        "2",
        "--corpus",
        corpus,
        "--max-tokens",
        str(MAX_TOKENS),
        *learnt,
        *home,
    )
    run("root", "export", "same", tmp_path / "same.safetensors", *home)
    on = ("--distilled", tmp_path / "same.safetensors", "--steps", "1")
    run("root", "add", "on", "--config", recipe, "--lower", "2", *on, *home)
    taken = json.loads(run("root", "show", "on", "--json", *home))["distillation"]
    assert taken["seconds_before"] == shown["distillation"]["seconds"]

    rows = json.loads(run("root", "check", "r", "--texts", foreign, "--texts", corpus, "--json", *home))
    assert [row["texts_of"] for row in rows] == [str(foreign), str(corpus)]
    assert rows[0]["final_cosine"] == pytest.approx(shown["fidelity"]["final_cosine"], abs=2e-3)


def test_recipes_that_lack_something(run: Run, tmp_path: Path) -> None:
    home = ("--home", tmp_path / "home")
    assert run("root", "add", "r", "--lower", "2", *home) == "hplm: a root needs --from, or 'source' in a --config file"
    recipe = tmp_path / "root.toml"
    recipe.write_text("lower = 2\nsource = 'm'\ncolour = 'red'\ncorpus = ['x.txt']\n")
    assert run("root", "add", "r", "--config", recipe, *home).endswith("colour: Extra inputs are not permitted")
    assert not (tmp_path / "home").exists()


def test_a_check_of_what_is_not_there(run: Run, built_home: Home, tmp_path: Path) -> None:
    home = ("--home", built_home.path)
    assert "moon" in run("root", "check", "moon", "--texts", tmp_path / "a.txt", *home)
    assert "a.txt does not exist" in run("root", "check", "tiny", "--texts", tmp_path / "a.txt", *home)
