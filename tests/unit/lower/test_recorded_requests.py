"""What `hplm_lower` notes as traffic: accepted requests with their tokens, rejected ones with the reason, no others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from backends.errors import InvalidArgumentError
from backends.home import Home
from backends.lower.encode_queue import EncodeQueue
from backends.lower.service import HiddenRequest, LowerService, TextRequest
from backends.lower.settings import FillingSettings, Missing, QueueSettings
from backends.model_settings import ModelSettings
from backends.registry.registry import Registry
from backends.registry.snapshot import RegistrySnapshot
from backends.scheduling.rejection import RejectedError
from backends.seal import OWN_SEAL
from backends.traffic.recorder import TrafficRecorder
from backends.traffic.recording import read_recording
from backends.traffic.settings import RECORD_VARIABLE, TrafficSettings
from backends.wire import decode_tickets

Noted = tuple[str, int, int, int, str, str]


class Recorded:
    """A service that records, and what it recorded once it is closed."""

    def __init__(self, home: Home, folder: Path) -> None:
        self.folder = folder
        self._snapshot = RegistrySnapshot(Registry.open(home))
        recorder = TrafficRecorder(folder, "lower", TrafficSettings(record=True))
        # Nothing is written into the home that all tests share.
        self.service = LowerService(home, self._snapshot, FillingSettings(Missing.FALLBACK), traffic=recorder)

    def close(self) -> list[Noted]:
        """Return hPLM, rows, tokens, deadline, outcome and level of each record."""
        self.service.close()
        self._snapshot.close()
        (path,) = self.folder.iterdir()
        read = read_recording(path)
        return [
            (
                read.hplms[row["hplm"]].id, int(row["rows"]), int(row["tokens"]), int(row["deadline_us"]),
                read.head.outcomes[row["outcome"]], read.head.levels[row["level"]],
            )
            for row in read.records
        ]  # fmt: skip


@pytest.fixture
def recorded(built_home: Home, tmp_path: Path) -> Iterator[Recorded]:
    yield Recorded(built_home, tmp_path / "traffic")


def test_accepted_requests_are_noted_with_their_tokens(recorded: Recorded) -> None:
    texts = [b"the cat is lovely", b"hammerhammerhammer"]
    asked = [
        TextRequest([b"acme/topic"], texts[:1], '{"deadline_ms": 60000, "level": "full"}'),
        TextRequest([b"acme/topic", b"globex/topic"], texts, ""),
    ]
    answered = recorded.service.encode(asked)
    lengths = [
        [one.ticket.num_tokens for one in decode_tickets(result.tickets)]
        for result in answered
        if isinstance(result, HiddenRequest)
    ]
    assert recorded.close() == [
        ("acme/topic", 1, lengths[0][0], 60_000_000, "accepted", "full"),
        ("acme/topic", 1, lengths[1][0], 0, "accepted", "auto"),
        ("globex/topic", 1, lengths[1][1], 0, "accepted", "auto"),
    ]


def test_what_could_be_served_at_no_time_is_no_traffic(recorded: Recorded) -> None:
    canary = f'{{"tenant_token": "{OWN_SEAL.canary_token}"}}'
    recorded.service.encode(
        [
            TextRequest([b"acme/nothing"], [b"the cat"], ""),
            TextRequest([b"acme/topic"], [b"  "], ""),
            TextRequest([b"acme/topic"], [b"the cat"], '{"deadline_ms": -1}'),
            TextRequest([b"acme/topic"], [b"the cat"], canary),
        ]
    )
    assert recorded.close() == []


def test_rejected_requests_are_noted_with_the_reason(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, encoding = threading.Event(), threading.Event()
    encode = recorded.service.encode_accepted

    def encode_when_open(requests: object) -> object:
        encoding.set()
        assert gate.wait(30)
        return encode(requests)  # type: ignore[arg-type]

    monkeypatch.setattr(recorded.service, "encode_accepted", encode_when_open)
    queue = EncodeQueue(recorded.service, QueueSettings(max_rows=3, tenant_quota=2))
    queue.begin_call()

    def add(*hplms: bytes, parameters: str = "") -> object:
        texts = [b"the cat is lovely"] * len(hplms)
        return queue.add(TextRequest(hplms, texts, parameters), lambda _: None)

    assert add(b"acme/topic") is None
    assert encoding.wait(30)  # it waits no more, and holds what comes after it back
    assert add(b"acme/topic", b"acme/topic") is None
    assert isinstance(add(b"acme/mood"), RejectedError)
    assert add(b"globex/topic") is None
    assert isinstance(add(b"initech/mood", parameters='{"deadline_ms": 7}'), RejectedError)
    assert isinstance(add(b"nobody/mood"), RejectedError)
    gate.set()
    while queue.num_rows:
        pass
    queue.close()
    noted = recorded.close()
    rejected = [(hplm, rows, deadline, why) for hplm, rows, _, deadline, why, _ in noted if why != "accepted"]
    assert rejected == [("acme/mood", 1, 0, "tenant_quota"), ("initech/mood", 1, 7000, "queue_full")]
    assert [(hplm, rows) for hplm, rows, _, _, why, _ in noted if why == "accepted"] == [
        ("acme/topic", 1), ("acme/topic", 2), ("globex/topic", 1),
    ]  # fmt: skip


def test_traffic_is_recorded_only_where_a_setting_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def settings(**parameters: str) -> TrafficSettings:
        return TrafficSettings.from_model(ModelSettings(Home(tmp_path), parameters))

    monkeypatch.delenv(RECORD_VARIABLE, raising=False)
    assert settings() == TrafficSettings() and not settings().record
    assert settings(record_traffic="true", traffic_mb="32", traffic_days="3") == TrafficSettings(True, 32, 3)
    monkeypatch.setenv(RECORD_VARIABLE, "1")
    assert settings().record
    monkeypatch.setenv(RECORD_VARIABLE, "off")
    assert not settings(record_traffic="true").record
    monkeypatch.setenv(RECORD_VARIABLE, "perhaps")
    with pytest.raises(InvalidArgumentError, match="HPLM_RECORD_TRAFFIC is 'perhaps', not one of 1, true"):
        settings()


@pytest.mark.parametrize(("max_mb", "max_days"), [(15, 1), (1 << 21, 1), (16, 0), (16, 3651)])
def test_impossible_limits_are_rejected(max_mb: int, max_days: int) -> None:
    with pytest.raises(InvalidArgumentError, match="recorded traffic"):
        TrafficSettings(True, max_mb, max_days)
