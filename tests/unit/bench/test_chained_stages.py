"""Rows that pass from an engine to that of the next stage through a socket, and what comes back."""

from __future__ import annotations

import os
import queue
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from backends.engine.open_request import Answered
from backends.engine.passed import Passed
from backends.engine.service import HiddenRows
from backends.errors import HplmError
from backends.home import Home
from backends.registry.registry import Registry
from backends.seal import OWN_SEAL
from backends.stage_wire import Mates
from backends.wire import Ticket, encode_tickets, fold_rows
from bench.kit.stages.chained import FirstStage, Link, SecondStage
from stage_chain import HIDDEN, Chain, running_chain


@pytest.fixture
def link() -> Iterator[Link]:
    made = Link.new()
    yield made
    for end in made:
        if not end.closed:
            with socket.socket(fileno=os.dup(end.fileno())) as plain:
                plain.shutdown(socket.SHUT_RDWR)  # or threads that read would go on for ever
    made.close()


@pytest.fixture
def chain(tiny_home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Chain]:
    with running_chain(tiny_home, tmp_path, monkeypatch) as started:
        yield started


def rows_of(key: int, length: int) -> HiddenRows:
    row = np.random.default_rng(key % 1000).normal(size=(length, HIDDEN)).astype(np.float16)
    return HiddenRows(fold_rows([row]), encode_tickets([Ticket(key, length, False, None)]), [b""])


def test_answers_are_those_of_stages_without_a_socket(chain: Chain, tiny_home: Home, link: Link) -> None:
    first, second = chain.stages
    first_stage = FirstStage(link.first, OWN_SEAL)
    SecondStage(link.second, second.submit_all)
    keys = [entry.key for entry in Registry.open(tiny_home).hplms()]
    expected = [chain.ask(key).get(timeout=30) for key in keys]
    answers: list[queue.Queue[Answered]] = [queue.Queue() for _ in keys]
    for key, answer in zip(keys, answers, strict=True):
        rows = rows_of(key, 5)
        first.submit_all([(rows, first_stage.after(rows, answer.put))])
    assert [answer.get(timeout=30) for answer in answers] == expected
    rows = rows_of(keys[0], 5)
    forged: queue.Queue[Answered] = queue.Queue()
    first_stage.after(rows, forged.put)([Passed(np.zeros((5, HIDDEN), np.float32), Mates(1, 1, 99))])
    answer = forged.get(timeout=30)
    assert isinstance(answer, HplmError) and "cut in different places" in str(answer)


def test_what_waits_ends_with_the_second_stage(link: Link) -> None:
    first_stage = FirstStage(link.first, OWN_SEAL)
    rows = rows_of(1, 5)
    answers: queue.Queue[Answered] = queue.Queue()
    pass_on = first_stage.after(rows, answers.put)
    pass_on([Passed(np.zeros((5, HIDDEN), np.float32), Mates(1, 1, 1))])
    link.second.close()
    assert "has ended" in str(answers.get(timeout=30))  # what waited
    pass_on([Passed(np.zeros((5, HIDDEN), np.float32), Mates(2, 1, 1))])
    assert "has ended" in str(answers.get(timeout=30))  # what comes later
    pass_on(HplmError("of the first stage"))
    assert "of the first stage" in str(answers.get(timeout=30))
