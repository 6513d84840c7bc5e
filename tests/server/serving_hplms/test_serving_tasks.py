"""NER, regression and pairs behind the real server: right by the slow reference, and right in every character."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
import torch

from backends.adapters.recipe import AdapterRecipe
from backends.engine.entities import best_tags
from backends.registry.registry import Registry
from bench.kit.reference import ReferenceHplm
from bench.kit.tiny_home import TOPICS, ignore, sample_texts, write_pairs, write_tagged, write_values
from builder.construct.hplm.hplms import create_hplm
from builder.construct.hplm.tune import TuneSettings
from hplm_client import Classification, ClientError, Entities, Entity, HplmClient, InvalidRequestError, Request, Value
from served_home import Served
from short_requests import new_hplm

pytestmark = pytest.mark.server
TAGGING = TuneSettings(
    recipe=AdapterRecipe(width=8, bottleneck_sites=("attention", "output")), epochs=25, learning_rate=3e-2, patience=25
)
QUICK = TuneSettings(recipe=AdapterRecipe(width=8, entrance_width=8), epochs=6, learning_rate=1e-2)


@pytest.fixture(scope="module")
def tasks(served: Served) -> Iterator[Served]:
    """Three more hPLMs, made while the server runs."""
    registry = Registry.open(served.home)
    wanted = (("tasks/ner", write_tagged, None, TAGGING), ("tasks/pair", write_pairs, None, QUICK))
    for hplm, write, task, tune in (*wanted, ("tasks/value", write_values, "regression", QUICK)):
        files = write(served.work / hplm.replace("/", "-"), 7)
        create_hplm(served.home, registry, new_hplm(hplm, "tiny", "farm", *files, task=task, tune=tune), ignore)
    with HplmClient(served.grpc_url) as client:
        while not all(_is_live(client, hplm) for hplm in ("tasks/ner", "tasks/value") for _ in range(8)):
            pass
    yield served
    for hplm in ("tasks/ner", "tasks/pair", "tasks/value"):
        registry.delete_hplm(hplm)


def _is_live(client: HplmClient, hplm: str) -> bool:
    try:
        return bool(client.infer(hplm, "cat"))
    except ClientError:
        return False


@pytest.fixture(scope="module", params=["grpc", "http"])
def client(tasks: Served, request: pytest.FixtureRequest) -> Iterator[HplmClient]:
    url = tasks.grpc_url if request.param == "grpc" else tasks.http_url
    with HplmClient(f"{request.param}://{url.rpartition('/')[2]}") as opened:
        yield opened


def reference(served: Served, hplm: str) -> ReferenceHplm:
    return ReferenceHplm(served.home, Registry.open(served.home).hplm(hplm))


def expected_entities(slow: ReferenceHplm, labels: tuple[str, ...], text: str) -> list[tuple[int, int, str, float]]:
    words = slow.words(text)
    chances = slow.logits(text)[[token for token, _, _ in words]].log_softmax(dim=-1)
    tags = best_tags(chances.numpy(), labels).tolist()
    found: list[tuple[int, int, str, list[float]]] = []
    for (_, start, end), tag, row in zip(words, tags, chances.exp(), strict=True):
        if labels[tag].startswith("B-"):
            found.append((start, end, labels[tag][2:], [float(row[tag])]))
        elif labels[tag].startswith("I-"):
            begun = found.pop()
            found.append((begun[0], end, begun[2], [*begun[3], float(row[tag])]))
    return [(start, end, label, sum(scores) / len(scores)) for start, end, label, scores in found]


def test_entities_equal_the_reference(tasks: Served, client: HplmClient) -> None:
    slow = reference(tasks, "tasks/ner")
    labels = Registry.open(tasks.home).hplm("tasks/ner").labels
    texts = [sample.text for sample in sample_texts(40, seed=321)]
    num_found = 0
    for text, answer in zip(texts, client.infer_many([("tasks/ner", text) for text in texts]), strict=True):
        assert isinstance(answer, Entities)
        wanted = expected_entities(slow, labels, text)
        assert [(each.start, each.end, each.label) for each in answer.entities] == [each[:3] for each in wanted]
        assert [each.score for each in answer.entities] == pytest.approx([each[3] for each in wanted], abs=2e-2)
        assert all(each.text == text[each.start : each.end] for each in answer.entities)
        num_found += len(wanted)
    assert num_found > 20


DECORATIONS = ["  ", "\t", "🙂 ", "日本 ", "👩‍🔬 ", "Zoë ", "cafe\u0301 ", "\u200b", "…", "\n", "नमस्ते "]


def test_offsets_are_characters_of_the_text_as_sent(client: HplmClient) -> None:
    """Whatever stands around them, the topic words of a text are found where they are."""
    chance = random.Random(5)
    words = {word for topic in TOPICS.values() for word in topic}
    rows = []
    for sample in sample_texts(60, seed=99):
        parts = [chance.choice(DECORATIONS) if chance.random() < 0.4 else "" for _ in range(30)]
        rows.append("".join(part + word + " " for part, word in zip(parts, sample.text.split(), strict=False)))
    hits = 0
    for text, answer in zip(rows, client.infer_many([("tasks/ner", text) for text in rows]), strict=True):
        assert isinstance(answer, Entities)
        for each in answer.entities:
            assert each.text == text[each.start : each.end]
            assert each.text == each.text.strip()
            hits += each.text.split()[0] in words
    assert hits > 40


def test_long_and_wordless_texts(client: HplmClient) -> None:
    answer = client.infer("tasks/ner", "rain " + "the " * 500 + "rain")
    assert isinstance(answer, Entities)
    assert answer.truncated
    assert all(each.end < 200 for each in answer.entities)
    nothing = client.infer("tasks/ner", "\u200b\u200b")
    assert isinstance(nothing, Entities)
    assert nothing.entities == ()


def test_values_equal_the_reference(tasks: Served, client: HplmClient) -> None:
    slow = reference(tasks, "tasks/value")
    texts = [sample.text for sample in sample_texts(20, seed=322)]
    for text, answer in zip(texts, client.infer_many([("tasks/value", text) for text in texts]), strict=True):
        assert isinstance(answer, Value)
        assert answer.value == pytest.approx(float(slow.logits(text)[0]), rel=2e-2)
        assert 0 < answer.value < 2000


def test_pairs_equal_the_reference(tasks: Served, client: HplmClient) -> None:
    slow = reference(tasks, "tasks/pair")
    texts = [sample.text for sample in sample_texts(40, seed=323)]
    pairs = list(zip(texts[::2], texts[1::2], strict=True))
    answers = client.infer_many([("tasks/pair", *pair) for pair in pairs])
    for pair, answer in zip(pairs, answers, strict=True):
        assert isinstance(answer, Classification)
        chances = torch.softmax(slow.logits(*pair), dim=-1).tolist()
        assert list(answer.scores.values()) == pytest.approx(chances, abs=2e-2)
    swapped = client.infer_many([("tasks/pair", second, first) for first, second in pairs])
    assert any(
        abs(one.scores["glad"] - other.scores["glad"]) > 1e-3
        for one, other in zip(answers, swapped, strict=True)
        if isinstance(one, Classification) and isinstance(other, Classification)
    )


def test_a_pair_task_wants_pairs_and_others_read_a_tab_as_a_blank(client: HplmClient) -> None:
    with pytest.raises(InvalidRequestError, match="'tasks/pair' reads pairs: TEXT needs a TAB"):
        client.infer("tasks/pair", "my cat")
    long = client.infer("tasks/pair", "cat " * 300, "dog " * 300)
    assert long.truncated
    tabbed, spaced = client.infer("acme/topic", "my cat", "is good"), client.infer("acme/topic", "my cat is good")
    assert isinstance(tabbed, Classification)
    assert isinstance(spaced, Classification)
    assert tabbed.scores == pytest.approx(dict(spaced.scores), abs=1e-6)


def test_tasks_share_a_batch(tasks: Served, client: HplmClient) -> None:
    """Rows of all tasks at once answer as they do alone."""
    ids = ["tasks/ner", "acme/topic", "tasks/value", "globex/topic", "tasks/pair"]
    rows = []
    for place, sample in enumerate(sample_texts(60, seed=55)):
        hplm = ids[place % len(ids)]
        rows.append(Request(hplm, sample.text, "good rain" if hplm == "tasks/pair" else None))
    together = client.infer_many(rows)
    assert [answer.hplm for answer in together] == [row.hplm for row in rows]
    for row, answer in zip(rows[:15], together, strict=False):
        alone = client.infer(row.hplm, row.text, row.text_pair)
        assert type(alone) is type(answer)
        if isinstance(alone, Classification) and isinstance(answer, Classification):
            assert alone.scores == pytest.approx(dict(answer.scores), abs=0.01)
        if isinstance(alone, Value) and isinstance(answer, Value):
            assert alone.value == pytest.approx(answer.value, rel=1e-3)
        if isinstance(alone, Entities) and isinstance(answer, Entities):
            assert [_place(each) for each in alone.entities] == [_place(each) for each in answer.entities]


def _place(entity: Entity) -> tuple[int, int, str]:
    return entity.start, entity.end, entity.label


def test_infer_prints_each_task(tasks: Served, run_hplm: Callable[..., str]) -> None:
    def printed(*arguments: str) -> str:
        return run_hplm("infer", *arguments, "--url", f"grpc://{tasks.grpc_url}")

    assert "rain" in printed("tasks/ner", "the rain is good", "the wind was very near my rain")
    assert "value" in printed("tasks/value", "a good rain")
    for pair in (("a cat\tgood",), ("a cat", "--pair", "good")):
        out = printed("tasks/pair", *pair)
        assert "glad" in out or "sad" in out
