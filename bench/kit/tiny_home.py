"""A complete trained home in seconds, for tests and benches: a small random BERT, two domains, four hPLMs."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import xxhash
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertModel

from backends.adapters.recipe import AdapterRecipe
from backends.home import Home
from backends.registry.registry import Registry
from builder.construct.domain.domains import create_domain
from builder.construct.hplm.hplms import create_hplm
from builder.construct.root.roots import add_root
from builder.progress import Step
from builder.requests.domains import CreateDomain
from builder.requests.hplms import CreateHplm
from builder.requests.roots import AddRoot
from builder.settings.domain import PlotSettings
from builder.settings.root import DistilSettings

TOPICS = {
    "animals": "cat dog horse sheep goat mouse rabbit".split(),
    "tools": "hammer saw drill wrench chisel plane ladder".split(),
    "weather": "rain snow wind storm cloud frost thunder".split(),
}
MOODS = {"glad": "good fine lovely splendid".split(), "sad": "bad poor awful dreadful".split()}
FILLER = "the a is was very near under over with and my your this that today again".split()
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
MAX_TOKENS = 32


@dataclass(frozen=True)
class LabelledText:
    text: str
    topic: str
    mood: str


def sample_texts(count: int, seed: int) -> list[LabelledText]:
    """Random sentences that name one topic and one mood."""
    rng = random.Random(seed)
    return [_sample(rng) for _ in range(count)]


def _sample(rng: random.Random) -> LabelledText:
    topic, mood = rng.choice(sorted(TOPICS)), rng.choice(sorted(MOODS))
    words = rng.choices(FILLER, k=rng.randint(1, 12))
    words += rng.choices(TOPICS[topic], k=2) + rng.choices(MOODS[mood], k=2)
    rng.shuffle(words)
    return LabelledText(" ".join(words), topic, mood)


def write_tiny_bert(folder: Path, seed: int = 5, hidden_size: int = 64, max_tokens: int = 64) -> Path:
    """A Hugging Face folder with a random 4-layer BERT and a WordPiece vocabulary of the sample texts."""
    torch.manual_seed(seed)
    words = [text.text for text in sample_texts(500, seed)]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(words, trainers.WordPieceTrainer(vocab_size=300, special_tokens=SPECIAL))
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    config = BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=hidden_size,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=2 * hidden_size,
        max_position_embeddings=max_tokens,
        initializer_range=0.1,
    )
    BertModel(config).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def write_corpus(path: Path, count: int, seed: int) -> Path:
    path.write_text("".join(f"{text.text}\n" for text in sample_texts(count, seed)))
    return path


def write_task(folder: Path, question: str, seed: int, train: int = 160) -> tuple[Path, Path]:
    """Training and dev files for "topic" or "mood"."""
    folder.mkdir(parents=True, exist_ok=True)
    files = (folder / "train.jsonl", folder / "dev.jsonl")
    for path, count, offset in zip(files, (train, 60), (0, 1), strict=True):
        rows = [{"text": t.text, "label": getattr(t, question)} for t in sample_texts(count, seed + offset)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return files


def write_tagged(folder: Path, seed: int, train: int = 160) -> tuple[Path, Path]:
    """Training and dev files for NER: every run of topic words is an entity of that topic."""
    folder.mkdir(parents=True, exist_ok=True)
    files = (folder / "train.conll", folder / "dev.conll")
    for path, count, offset in zip(files, (train, 60), (0, 1), strict=True):
        path.write_text("\n".join(_tagged(text) for text in sample_texts(count, seed + offset)))
    return files


def _tagged(sample: LabelledText) -> str:
    lines, previous = [], "O"
    for word in sample.text.split():
        inside = word in TOPICS[sample.topic]
        tag = f"{'B' if previous == 'O' else 'I'}-{sample.topic}" if inside else "O"
        lines.append(f"{word}\t{tag}\n")
        previous = tag
    return "".join(lines)


def write_pairs(folder: Path, seed: int, train: int = 160) -> tuple[Path, Path]:
    """Training and dev files of pairs, whose label is the mood of the second half."""

    def row(first: LabelledText, second: LabelledText) -> dict[str, object]:
        return {"text": first.text, "text_pair": second.text, "label": second.mood}

    return _write_rows(folder, [sample_texts(train, seed), sample_texts(60, seed + 1)], row)


def write_values(folder: Path, seed: int, train: int = 160) -> tuple[Path, Path]:
    """Training and dev files of numbers: 1000 for a glad text, 400 for a sad one, and a little for its topic."""
    worth = {"glad": 1000.0, "sad": 400.0, "animals": 5.0, "tools": 0.0, "weather": -5.0}

    def row(text: LabelledText, _: LabelledText) -> dict[str, object]:
        return {"text": text.text, "label": worth[text.mood] + worth[text.topic]}

    return _write_rows(folder, [sample_texts(train, seed), sample_texts(60, seed + 1)], row)


def _write_rows(
    folder: Path, splits: list[list[LabelledText]], row: Callable[[LabelledText, LabelledText], dict[str, object]]
) -> tuple[Path, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    files = (folder / "train.jsonl", folder / "dev.jsonl")
    for path, texts in zip(files, splits, strict=True):
        rows = [row(*pair) for pair in zip(texts, reversed(texts), strict=True)]
        path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return files


def ignore(step: Step) -> None:
    """Drop a progress report."""


def held_out_of(texts: list[str]) -> set[str]:
    """What of a small corpus is measured on, and not learnt from."""
    ordered = sorted(set(texts), key=lambda text: xxhash.xxh3_64_intdigest(text.encode()))
    return {text for text in ordered if xxhash.xxh3_64_intdigest(text.encode()) < 2**64 // 50} or set(ordered[:1])


def tiny_root(home: Home, registry: Registry, work: Path, name: str = "tiny", seed: int = 5, lower: int = 2) -> None:
    """Build a root of four layers, of which `lower` become its table."""
    model = write_tiny_bert(work / f"{name}-model", seed)
    corpus = write_corpus(work / f"{name}-general.txt", 400, seed=1)
    settings = DistilSettings(steps=8, tokens_per_batch=512, checkpoint_every=4)
    plot = PlotSettings(max_fragments=1500)
    request = AddRoot(
        name=name, source=str(model), lower=lower, corpus=[corpus], max_tokens=MAX_TOKENS, distil=settings, plot=plot
    )
    add_root(home, registry, request, ignore)


def tiny_hplm(
    home: Home, registry: Registry, work: Path, hplm: str, domain: str, question: str, seed: int, root: str = "tiny"
) -> None:
    train, dev = write_task(work / hplm.replace("/", "-"), question, seed)
    tune = {"recipe": asdict(AdapterRecipe(width=8)), "epochs": 10, "learning_rate": 1e-2, "seed": seed}
    request = CreateHplm(id=hplm, root=root, domain=domain, train=train, dev=dev, tune=tune)
    create_hplm(home, registry, request, ignore)


def build_tiny_home(folder: Path) -> Home:
    home, work = Home(folder / "home"), folder / "work"
    work.mkdir(parents=True)
    registry = Registry.open(home, create=True)
    tiny_root(home, registry, work)
    for domain, seed in (("farm", 11), ("street", 12)):
        corpus = write_corpus(work / f"{domain}.txt", 300, seed)
        request = CreateDomain(name=domain, root="tiny", corpus=[corpus], theta=1.0, max_fragments=None, mlm_steps=0)
        create_domain(home, registry, request, ignore)
    for seed, (hplm, domain, question) in enumerate(
        [
            ("acme/topic", "farm", "topic"),
            ("acme/mood", "farm", "mood"),
            ("globex/topic", "street", "topic"),
            ("initech/mood", "street", "mood"),
        ]
    ):
        tiny_hplm(home, registry, work, hplm, domain, question, 100 * (seed + 1))
    registry.close()
    return home
