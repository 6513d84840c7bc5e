"""Every family's model, split into a root's parts: the parts compute what the model computes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from backends.errors import InvalidArgumentError
from backends.root.encoder import padded_attention
from backends.root.tokenizer import RootTokenizer
from bench.kit.tiny_home import sample_texts
from builder.construct.root.conversion import RootParts, convert, padding_exchange
from builder.construct.root.model_folder import weights_checksum
from builder.construct.root.pretrained import load_pretrained, tokenizer_file
from builder.construct.root.source import locate_pretrained
from builder.construct.root.teacher import Teacher
from builder.construct.training.rows import padded_rows
from family_models import FAMILY_MODELS, ROBERTA_LIKE, write_family_model


@pytest.fixture(scope="module", params=FAMILY_MODELS)
def model_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_family_model(tmp_path_factory.mktemp("models") / request.param, request.param)


def is_roberta_like(folder: Path) -> bool:
    return folder.name in ROBERTA_LIKE


def model_states(folder: Path, ids: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    output = load_pretrained(folder)(input_ids=ids, attention_mask=mask.long(), output_hidden_states=True)
    states: tuple[Tensor, ...] = output.hidden_states
    return states


def all_layers(parts: RootParts) -> list[nn.Module]:
    return [*parts.lower.layers, *parts.upper.layers]


def test_layers_with_full_attention_equal_the_models(model_folder: Path) -> None:
    parts = convert(model_folder, num_lower_layers=2, max_tokens=32)
    geometry = parts.geometry
    ids = torch.randint(5, geometry.vocab_size, (4, 12))
    mask = torch.arange(12) < torch.tensor([12, 3, 1, 7])[:, None]
    ids[~mask] = geometry.pad_id
    states = model_states(model_folder, ids, mask)
    attend = padded_attention(geometry.num_heads, mask)
    hidden = states[0]
    for layer, expected in zip(all_layers(parts), states[1:], strict=True):
        hidden = layer(hidden, attend)
        torch.testing.assert_close(hidden[mask], expected[mask], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_fragments_equal_the_model_on_as_many_tokens(model_folder: Path, n: int) -> None:
    parts = convert(model_folder, num_lower_layers=2, max_tokens=32, n=n)
    ids = torch.randint(1, parts.geometry.vocab_size, (16, n))
    own_ids = padding_exchange(parts.geometry)[ids]
    if is_roberta_like(model_folder):
        assert (own_ids != 1).all()  # its padding, which these models skip when they count positions
    states = model_states(model_folder, own_ids, torch.ones_like(ids))
    gated = parts.lower(ids)  # the gate starts at sigmoid(0)
    torch.testing.assert_close(gated, 0.5 * states[2], rtol=1e-5, atol=1e-5)


def test_the_teacher_gives_the_models_states(model_folder: Path) -> None:
    """Tokenised by the root, asked through the teacher; and the plain library on each text by itself."""
    parts = convert(model_folder, num_lower_layers=2, max_tokens=32)
    texts = [text.text for text in sample_texts(9, seed=4)]
    tokenizer = RootTokenizer(model_folder / "tokenizer.json", 32, parts.geometry.pad_id)
    states = Teacher(model_folder, parts).states(padded_rows(tokenizer.encode(texts)))
    assert len(states) == 3
    plain = Tokenizer.from_file(str(model_folder / "tokenizer.json"))
    rows = [torch.tensor([plain.encode(text).ids]) for text in texts]
    alone = [model_states(model_folder, ids, torch.ones_like(ids)) for ids in rows]
    for layer, state in enumerate(states, start=2):
        expected = torch.cat([of_text[layer][0] for of_text in alone])
        torch.testing.assert_close(state, expected, rtol=1e-4, atol=1e-4)


def test_id_0_is_free_for_the_empty_slot(model_folder: Path) -> None:
    geometry = convert(model_folder, num_lower_layers=2, max_tokens=32).geometry
    tokenizer = RootTokenizer(model_folder / "tokenizer.json", 32, geometry.pad_id)
    rows = tokenizer.encode(["cat <pad> dog [PAD] </s> <s>", "cat"])
    assert rows.token_ids.min() > 0
    plain = Tokenizer.from_file(str(model_folder / "tokenizer.json"))
    own = padding_exchange(geometry).numpy()
    assert own[rows.token_ids[rows.row_offsets[1] :]].tolist() == plain.encode("cat").ids
    names = {plain.id_to_token(int(own[number])): number for number in tokenizer.special_ids.values()}
    assert names == tokenizer.special_ids


def test_exchanging_twice_changes_nothing(model_folder: Path) -> None:
    geometry = convert(model_folder, num_lower_layers=2, max_tokens=32).geometry
    order = padding_exchange(geometry).numpy()
    assert np.array_equal(order[order], np.arange(geometry.vocab_size))
    assert order[geometry.pad_id] == 0


def test_positions_that_follow_the_padding_cost_two(tmp_path: Path) -> None:
    folder = write_family_model(tmp_path / "roberta", "roberta")
    assert convert(folder, 2, max_tokens=46).geometry.max_tokens == 46
    with pytest.raises(InvalidArgumentError, match="--max-tokens 47 exceeds the model's 46"):
        convert(folder, 2, max_tokens=47)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "shards"])
def test_weights_in_other_files(tmp_path: Path, name: str) -> None:
    folder = write_family_model(tmp_path / "model", "electra-small")
    expected = convert(folder, 2, 32)
    other = Path(shutil.copytree(folder, tmp_path / "other"))
    model = load_pretrained(folder)
    (other / "model.safetensors").unlink()
    if name == "shards":
        model.save_pretrained(other, max_shard_size="20KB")
        assert len(list(other.glob("model-*.safetensors"))) > 1
    else:
        torch.save(model.state_dict(), other / name)
    assert locate_pretrained(str(other), tmp_path) == other
    for ours, theirs in zip(all_layers(convert(other, 2, 32)), all_layers(expected), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))
    before = weights_checksum(other)
    assert before == weights_checksum(other) != weights_checksum(folder)
    last = sorted(other.glob("*.bin" if name != "shards" else "model-*.safetensors"))[-1]
    content = bytearray(last.read_bytes())
    content[-1] ^= 1
    last.write_bytes(content)
    assert weights_checksum(other) != before


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = write_family_model(tmp_path / "model", "bert")
    load_pretrained(folder).save_pretrained(folder, max_shard_size="20KB")
    (folder / "model.safetensors").unlink(missing_ok=True)
    lost = sorted(folder.glob("model-*.safetensors"))[1]
    lost.unlink()
    with pytest.raises(InvalidArgumentError, match=lost.name):
        locate_pretrained(str(folder), tmp_path)


def test_a_pickle_that_would_run_code_is_not_loaded(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (tmp_path / "was_run",))  # type: ignore[return-value]

    folder = write_family_model(tmp_path / "model", "bert")
    (folder / "model.safetensors").unlink()
    torch.save({"embeddings.word_embeddings.weight": Evil()}, folder / "pytorch_model.bin")
    with pytest.raises(InvalidArgumentError, match="does not load"):
        load_pretrained(folder)
    assert not (tmp_path / "was_run").exists()


def test_a_tokenizer_made_from_its_vocabulary(tmp_path: Path) -> None:
    folder = write_family_model(tmp_path / "model", "bert")
    plain = Tokenizer.from_file(str(folder / "tokenizer.json"))
    vocabulary = sorted(plain.get_vocab().items(), key=lambda entry: entry[1])
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token, _ in vocabulary))
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    made = RootTokenizer(tokenizer_file(folder, tmp_path / "cache"), 32)
    texts = [text.text for text in sample_texts(20, seed=6)]
    for text, length in zip(texts, made.encode(texts).lengths, strict=True):
        ids = plain.encode(text).ids
        assert made.encode([text]).token_ids.tolist() == ids
        assert length == len(ids)


def test_a_model_without_any_tokenizer(tmp_path: Path) -> None:
    folder = write_family_model(tmp_path / "model", "roberta")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(InvalidArgumentError, match=r"has no tokenizer\.json, and none can be made"):
        tokenizer_file(folder, tmp_path / "cache")
