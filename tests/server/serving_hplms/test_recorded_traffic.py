"""A served home records what is asked, and `hplm traffic` counts it."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from backends.home import Home
from backends.registry.registry import Registry
from backends.root.store import RootFolder
from backends.traffic.settings import RECORD_VARIABLE
from builder.export.repository import render_repository
from builder.export.settings import ExportSettings
from builder.serving import TritonServer
from hplm_client import ClientError, HplmClient
from served_home import config_of
from waiting import LIMIT_S

pytestmark = pytest.mark.server
TEXTS = ("my cat is lovely", "the hammer broke on the first day", "rain")


def test_a_server_records_what_was_asked_through_both_protocols(
    tiny_home: Home, run_hplm: Callable[..., str], tmp_path: Path
) -> None:
    render_repository(tiny_home.repository, ExportSettings(lower_instances=2, upper_parameters={"dtype": "fp32"}))
    config = config_of(tiny_home)
    config = replace(config, environment={**config.environment, RECORD_VARIABLE: "true"})
    with TritonServer(config) as server:
        for url in (f"grpc://{server.grpc_url}", f"http://{server.http_url}"):
            with HplmClient(url, rows_per_request=3) as client:
                client.infer("acme/topic", TEXTS[0], deadline_ms=20_000)
                client.infer_many([("globex/topic", text) for text in TEXTS])
                client.infer("acme/topic", TEXTS[2], level="full")
                with pytest.raises(ClientError):
                    client.infer("acme/nothing", TEXTS[0])
        shown = _shown_once_written(run_hplm, tiny_home, num_requests=6)
    assert (shown["rows"], shown["accepted"], shown["rejected"], shown["lost"]) == (10, 6, {}, 0)
    assert shown["levels"] == {"auto": 4, "full": 2}
    assert (shown["without_deadline"], shown["deadline_ms"]["p50"], shown["complaints"]) == (4, 20_000.0, [])
    tokens = _tokens_of(tiny_home)
    groups = {group["hplm"]: (group["requests"], group["rows"], group["tokens"]) for group in shown["groups"]}
    assert groups == {
        "acme/topic": (4, 4, 2 * (tokens[TEXTS[0]] + tokens[TEXTS[2]])),
        "globex/topic": (2, 6, 2 * sum(tokens.values())),
    }
    trace = tmp_path / "trace.csv"
    run_hplm("traffic", "export", trace, "--home", tiny_home.path)
    with trace.open() as file:
        lines = list(csv.DictReader(file))
    assert sorted((line["hplm"], line["deadline_ms"]) for line in lines) == sorted(
        [("acme/topic", "20000"), ("acme/topic", "")] * 2 + [("globex/topic", "")] * 6
    )
    content = b"".join(path.read_bytes() for path in tiny_home.traffic.iterdir())
    assert b"acme/topic" in content
    assert not any(word.encode() in content for text in TEXTS for word in text.split() if len(word) > 3)


def _shown_once_written(run_hplm: Callable[..., str], home: Home, num_requests: int) -> dict[str, object]:
    """Return what is shown when both processes have written their requests, within a second of the last one."""
    end = time.monotonic() + LIMIT_S
    while True:
        shown: dict[str, object] = json.loads(
            run_hplm("traffic", "show", "--by", "hplm", "--json", "--home", home.path)
        )
        if shown["requests"] == num_requests or time.monotonic() > end:
            assert shown["requests"] == num_requests
            return shown
        time.sleep(0.2)


def _tokens_of(home: Home) -> dict[str, int]:
    registry = Registry.open(home)
    tokenizer = RootFolder(home.root(registry.hplm("acme/topic").domain.root)).tokenizer()
    encoded = tokenizer.encode(list(TEXTS))
    return dict(zip(TEXTS, (encoded.row_offsets[1:] - encoded.row_offsets[:-1]).tolist(), strict=True))
