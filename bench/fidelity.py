"""Does the server answer what a plain forward pass answers?

Every hPLM of a home is asked held-out texts, all tenants mixed in one batch, through real Triton over gRPC, with the
engine in fp32 and in bf16. Beside it runs the slow reference: fp32, one text at a time, the lower layers computed and
not looked up. `fallback_same_label_share` says what is lost because tables do not hold every tri-gram: how often the
reference decides alike when all tri-grams are computed.
"""

from __future__ import annotations

import random
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from backends.home import Home
from backends.registry.entries import HplmEntry
from backends.registry.registry import Registry
from bench.kit.entry import Result, at_least, at_most, bench
from bench.kit.reference import ReferenceHplm
from bench.kit.served import Serving, served
from bench.tasks.held_out import held_out_texts
from hplm_client import Classification, HplmClient

_ROWS_PER_BATCH = 64


@dataclass(frozen=True)
class Question:
    hplm: str
    text: str
    reference: Tensor
    exact: Tensor
    """The reference's logits, with the fragments that the tables hold and with every tri-gram computed."""


@dataclass(frozen=True)
class Comparison:
    """One hPLM's answers in one precision."""

    logit_difference: float
    probability_difference: float
    same_labels: int
    texts: int


def questions(home: Home, entries: list[HplmEntry], texts_per_hplm: int, seed: int) -> list[Question]:
    """Held-out texts of every hPLM with the reference's logits, in random order, so that batches are mixed."""
    asked = []
    for entry in entries:
        reference = ReferenceHplm(home, entry)
        texts = held_out_texts(home, entry.id)[:texts_per_hplm]
        asked += [Question(entry.id, t, reference.logits(t, shorten=True), reference.logits(t)) for t in texts]
        print(f"reference of {entry.id}: {len(texts)} texts", file=sys.stderr)
    random.Random(seed).shuffle(asked)
    return asked


def answers_of(home: Home, dtype: str, asked: list[Question]) -> list[Classification]:
    """The answers of a real server, in requests of one hPLM's row each, so that the server does the mixing."""
    with (
        tempfile.TemporaryDirectory() as folder,
        served(home, Serving(str(Path(folder) / "repository"), lower_instances=2, upper={"dtype": dtype})) as server,
        HplmClient(f"grpc://{server.grpc_url}", rows_per_request=1, concurrency=_ROWS_PER_BATCH) as client,
    ):
        answers = client.infer_many([(question.hplm, question.text) for question in asked])
    return [answer for answer in answers if isinstance(answer, Classification)]


def compare(asked: list[Question], answers: list[Classification]) -> dict[str, Comparison]:
    pairs: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for question, answer in zip(asked, answers, strict=True):
        got = torch.tensor(list(answer.scores.values()), dtype=torch.float64)
        pairs.setdefault(question.hplm, []).append((question.reference.double(), got))
    return {hplm: _comparison(of_hplm) for hplm, of_hplm in sorted(pairs.items())}


def _comparison(pairs: list[tuple[Tensor, Tensor]]) -> Comparison:
    logit_differences = [(_centred(got.log()) - _centred(expected)).abs().max() for expected, got in pairs]
    probability_differences = [(got - expected.softmax(dim=-1)).abs().mean() for expected, got in pairs]
    return Comparison(
        logit_difference=float(torch.stack(logit_differences).max()),
        probability_difference=float(torch.stack(probability_differences).mean()),
        same_labels=sum(int(got.argmax() == expected.argmax()) for expected, got in pairs),
        texts=len(pairs),
    )


def _centred(logits: Tensor) -> Tensor:
    """Probabilities fix logits up to a constant, so both sides are compared around their mean."""
    return logits - logits.mean()


def add_options(arguments: ArgumentParser) -> None:
    arguments.add_argument("--home", type=Path, default=Path("demo_home"), help="a home that the demo built")
    arguments.add_argument("--texts", type=int, help="texts per hPLM (100, or 8 with --quick)")


@bench(
    "fidelity",
    bars={
        "fp32_max_logit_difference": at_most(2e-2),
        "bf16_same_label_share": at_least(0.995),
        "bf16_mean_probability_difference": at_most(0.01),
    },
    add_options=add_options,
)
def fidelity(options: Namespace) -> Result:
    home = Home(options.home.absolute())
    texts_per_hplm = options.texts or (8 if options.quick else 100)
    entries = Registry.open(home).hplms()
    asked = questions(home, entries, texts_per_hplm, options.seed)
    compared = {dtype: compare(asked, answers_of(home, dtype, asked)) for dtype in ("fp32", "bf16")}
    rows = [
        {
            "hplm": entry.id,
            "texts": compared["fp32"][entry.id].texts,
            "fp32 max logit difference": compared["fp32"][entry.id].logit_difference,
            "bf16 same labels": compared["bf16"][entry.id].same_labels,
            "bf16 mean probability difference": compared["bf16"][entry.id].probability_difference,
        }
        for entry in entries
    ]
    bf16 = compared["bf16"].values()
    figures = {
        "fp32_max_logit_difference": max(one.logit_difference for one in compared["fp32"].values()),
        "bf16_same_label_share": sum(one.same_labels for one in bf16) / len(asked),
        "bf16_mean_probability_difference": sum(one.probability_difference * one.texts for one in bf16) / len(asked),
        "fallback_same_label_share": sum(int(q.reference.argmax() == q.exact.argmax()) for q in asked) / len(asked),
    }
    settings = {"texts_per_hplm": texts_per_hplm, "hplms": len(entries), "concurrent_requests": _ROWS_PER_BATCH}
    return Result(settings, figures, rows)


if __name__ == "__main__":
    fidelity.main()
