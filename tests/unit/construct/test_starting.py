from pathlib import Path

import torch
from torch.nn import functional
from transformers import BertModel

from backends.root.encoder import fragment_attention
from backends.root.tokenizer import RootTokenizer
from bench.kit.tiny_home import MAX_TOKENS, sample_texts, write_tiny_bert
from builder.construct.root.conversion import convert
from builder.construct.root.student import NUM_SINKS, Student, start_fragments
from builder.construct.root.teacher import Teacher


def started(model: Path) -> Student:
    parts = convert(model, 2, MAX_TOKENS, num_sinks=NUM_SINKS)
    student = Student(parts, RootTokenizer(model / "tokenizer.json", MAX_TOKENS))
    start_fragments(student, Teacher(model, parts), [text.text for text in sample_texts(64, seed=3)])
    return student


def test_sinks_are_the_special_tokens_mean_keys_and_values(tmp_path: Path) -> None:
    model = write_tiny_bert(tmp_path / "model")
    lower = started(model).parts.lower
    tokenizer = RootTokenizer(model / "tokenizer.json", MAX_TOKENS)
    plain = BertModel.from_pretrained(model).eval()
    found: list[list[torch.Tensor]] = [[], []]
    for text in sample_texts(64, seed=3):
        ids = torch.from_numpy(tokenizer.encode([text.text]).token_ids)[None]
        with torch.no_grad():
            states = plain(ids, output_hidden_states=True).hidden_states
            for index in range(2):
                attention = plain.encoder.layer[index].attention.self
                ends = states[index][0, [0, -1]]
                found[index].append(torch.stack([attention.key(ends), attention.value(ends)]))
    for index in range(2):
        torch.testing.assert_close(lower.sinks[index].data, torch.stack(found[index]).mean(0), rtol=1e-4, atol=1e-5)


def test_slots_start_as_mean_neighbouring_positions(tmp_path: Path) -> None:
    model = write_tiny_bert(tmp_path / "model")
    lower = started(model).parts.lower
    embeddings = BertModel.from_pretrained(model).embeddings
    positions = embeddings.position_embeddings.weight.detach()
    first, end = MAX_TOKENS // 16, MAX_TOKENS // 2 - 3 + 1
    for slot in range(3):
        expected = positions[first + slot : end + slot].mean(0) + embeddings.token_type_embeddings.weight[0].detach()
        torch.testing.assert_close(lower.slot_embeddings.weight[slot].data, expected, rtol=1e-5, atol=1e-6)


def test_fragments_attend_to_their_own_slots_and_the_sinks() -> None:
    chance = torch.Generator().manual_seed(7)
    heads, size = 4, 8
    query, key, value = (torch.randn(5, 3, heads * size, generator=chance) for _ in range(3))
    sinks = torch.randn(2, NUM_SINKS, heads * size, generator=chance)
    filled = torch.tensor([[1, 1, 1], [0, 1, 1], [0, 1, 0], [1, 1, 0], [1, 0, 1]], dtype=torch.bool)
    attended = fragment_attention(heads, filled, sinks)(0, query, key, value)
    for fragment in range(5):
        for head in range(heads):
            part = slice(head * size, (head + 1) * size)
            seen = filled[fragment]
            keys = torch.cat([sinks[0, :, part], key[fragment, seen][:, part]])
            values = torch.cat([sinks[1, :, part], value[fragment, seen][:, part]])
            weights = functional.softmax(query[fragment][:, part] @ keys.T / size**0.5, dim=-1)
            torch.testing.assert_close(attended[fragment][:, part], weights @ values, rtol=1e-5, atol=1e-5)
