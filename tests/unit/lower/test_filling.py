from __future__ import annotations

import shutil
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from filling_serving import ask, counted, fresh_rows, serving, shortened, wait_until

from backends.errors import InvalidArgumentError
from backends.home import Home
from backends.lower import filling
from backends.lower.domains import OpenDomains
from backends.lower.encoder import domain_encoder
from backends.lower.layers import fragment_values
from backends.lower.service import LowerService
from backends.lower.settings import FillingSettings, Missing
from backends.model_settings import ModelSettings
from backends.plot.header import Store
from backends.plot.keys import fragment_keys
from backends.plot.overlay_log import overlay_folder, overlay_keys
from backends.plot.table import Table
from backends.registry.entries import DomainEntry
from backends.registry.registry import Registry
from backends.root.lower import sum_overlapping
from backends.root.store import RootFolder
from backends.wire import Float16Array
from builder.construct.hplm.states import StateCache
from builder.progress import Step

BF16 = 0.02
"""Relative error of what is computed in bf16."""

pytestmark = pytest.mark.usefixtures("quick_upkeep")


def _ignore(step: Step) -> None:
    """Report progress to no reader."""


def exact(home: Home, hplm: str, text: str) -> Float16Array:
    """The slow, obvious way: one fragment at a time, from a table or through the domain's lower layers."""
    domain = Registry.open(home).hplm(hplm).domain
    root = RootFolder(home.root(domain.root))
    folders = [home.path / folder for folder in domain.folders]
    encoder, tables = domain_encoder(root, folders), [Table.open(folder, root.fingerprint) for folder in folders]
    tokens = root.tokenizer().encode([text])
    vectors = []
    for key in fragment_keys(tokens.token_ids, tokens.row_offsets):
        keys = np.array([key])
        holder = next((table for table in tables if table.find(Store.TRI, keys)[1][0]), None)
        if holder is None:
            vectors.append(fragment_values(encoder, Store.TRI, keys)[0])
        else:
            vectors.append(holder.vectors(Store.TRI, holder.find(Store.TRI, keys)[0])[0])
    summed = sum_overlapping(torch.from_numpy(np.stack(vectors)).float(), centre=1)
    positions, types = torch.from_numpy(tokens.positions), torch.from_numpy(tokens.type_ids)
    return root.aggregation()(summed, positions, types).to(torch.float16).numpy()


def test_computed_rows_are_exact_in_a_batch_of_mixed_domains(home: Home) -> None:
    rows = fresh_rows(48)
    with serving(home, Missing.COMPUTE) as service:
        first = ask(service, rows)
        assert shortened(service) == 0
        assert counted(service, "/computed") > 100
        computed = service.domains.events()["computed"]
        second = ask(service, rows)
        assert service.domains.events()["computed"] == computed
        assert counted(service, "/overlay") >= counted(service, "/computed")
    for (hplm, text), one, other in zip(rows, first, second, strict=True):
        assert np.array_equal(one, other)
        expected = exact(home, hplm, text).astype(np.float32)
        assert np.linalg.norm(one - expected) < BF16 * np.linalg.norm(expected)


def test_a_tuning_reads_what_computing_serves(home: Home) -> None:
    rows = fresh_rows(48)
    with serving(home, Missing.COMPUTE) as service:
        served = ask(service, rows)
    for hplm in sorted({hplm for hplm, _ in rows}):
        places = [place for place, row in enumerate(rows) if row[0] == hplm]
        cache = StateCache(home, Registry.open(home).hplm(hplm).domain)
        tuned_on = cache.rows([rows[place][1] for place in places], False, "train", _ignore)
        for number, place in enumerate(places):
            mine, theirs = tuned_on[number].float().numpy(), served[place].astype(np.float32)
            assert np.array_equal(mine, theirs)


def test_the_overlay_holds_what_a_full_table_would(home: Home) -> None:
    rows = fresh_rows(60)
    with serving(home, Missing.COMPUTE) as service:
        ask(service, rows)
        entry = Registry.open(home).hplm("globex/topic")
        folders = [home.path / folder for folder in entry.domain.folders]
        service.domains.lower_model(entry.domain)
        (overlay,) = [each.overlay for each in service.domains.fillings() if each.overlay.name == "street@1/overlay"]
        wait_until(lambda: _num_written(home) == service.domains.figures().entries)
        keys = overlay_keys(folders[0], Store.TRI.key_dtype).keys
        assert keys.size > 100
        held, found, _ = overlay.fetch(keys)
    root = RootFolder(home.root("tiny"))
    expected = fragment_values(domain_encoder(root, folders), Store.TRI, keys).reshape(keys.size, -1)
    assert found.all()
    assert np.linalg.norm(held.astype(np.float32) - expected) < BF16 * np.linalg.norm(expected.astype(np.float32))


def _num_written(home: Home) -> int:
    """Count the fragments that the overlays of both domains hold."""
    registry = Registry.open(home)
    tables = [home.path / registry.hplm(hplm).domain.folders[0] for hplm in ("acme/topic", "globex/topic")]
    return sum(overlay_keys(table, Store.TRI.key_dtype).keys.size for table in tables)


def test_what_was_computed_is_found_after_a_restart(home: Home) -> None:
    rows = fresh_rows(40)
    with serving(home, Missing.COMPUTE) as service:
        first = ask(service, rows)
    with serving(home, Missing.COMPUTE) as service:
        again = ask(service, rows)
        assert service.domains.events()["computed"] == 0
    assert all(np.array_equal(one, other) for one, other in zip(first, again, strict=True))


def test_learning_answers_at_once_and_exactly_later(home: Home) -> None:
    rows = fresh_rows(24)
    with serving(home, Missing.FALLBACK) as service:
        shorter = ask(service, rows)
        missing = shortened(service)
    with serving(home, Missing.LEARN) as service:
        before = ask(service, rows)
        assert shortened(service) == missing > 50
        wait_until(lambda: _asked_again(service, rows) == 0)
        after = ask(service, rows)
        assert service.domains.events()["learned"] > 50
        assert service.domains.events()["computed"] == 0
    with serving(home, Missing.COMPUTE) as service:
        computed = ask(service, rows)
    assert all(np.array_equal(one, other) for one, other in zip(before, shorter, strict=True))
    for one, other in zip(after, computed, strict=True):
        np.testing.assert_allclose(one, other, rtol=4e-3, atol=4e-3)


def _asked_again(service: LowerService, rows: list[tuple[str, str]]) -> int:
    """How many fragments a pass over the rows still finds nowhere."""
    before = shortened(service)
    ask(service, rows)
    return shortened(service) - before


def test_learning_that_cannot_keep_up_drops_and_counts(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filling, "_MOST_WANTED", 30)
    with serving(home, Missing.LEARN) as service:
        ask(service, fresh_rows(60))
        assert service.domains.events()["dropped"] > 100
        wait_until(lambda: service.domains.events()["learned"] > 0)
        assert service.domains.figures().entries <= 60


def test_a_tiny_bound_evicts_and_stays_exact(home: Home) -> None:
    with serving(home, Missing.COMPUTE, overlay_mb=1) as small, serving(home, Missing.COMPUTE) as large:
        for _ in range(12):
            rows = fresh_rows(64)
            for one, other in zip(ask(small, rows), ask(large, rows), strict=True):
                np.testing.assert_allclose(one, other, rtol=4e-3, atol=4e-3)
        assert small.domains.events()["evicted"] > 1_000
        assert small.domains.figures().size_bytes <= 1 << 20
        assert large.domains.events()["evicted"] == 0


def test_two_processes_on_one_home_share_what_they_learn(home: Home) -> None:
    rows = fresh_rows(30)
    with serving(home, Missing.COMPUTE) as one, serving(home, Missing.COMPUTE) as other:
        first = ask(one, rows)
        half = rows[:1] + rows[1:2]
        ask(other, half)  # opens the domains
        wait_until(lambda: other.domains.figures().entries >= one.domains.figures().entries)
        computed = other.domains.events()["computed"]
        second = ask(other, rows)
        assert other.domains.events()["computed"] == computed
    for left, right in zip(first, second, strict=True):
        np.testing.assert_allclose(left, right, rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("missing", [Missing.COMPUTE, Missing.LEARN])
def test_lower_layers_that_cannot_be_read_leave_it_to_shorter_fragments(
    home: Home, missing: Missing, caplog: pytest.LogCaptureFixture
) -> None:
    rows = fresh_rows(20)
    with serving(home, Missing.FALLBACK) as service:
        expected = ask(service, rows)
    weights = home.root("tiny") / "lower.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    with serving(home, missing) as service:
        for _ in range(3):
            for one, other in zip(ask(service, rows), expected, strict=True):
                assert np.array_equal(one, other)
            time.sleep(0.1)
    assert 1 <= caplog.text.count("lower layers cannot compute") <= 2  # at most once for each domain


@pytest.mark.parametrize("where", ["overlay", "run"])
def test_where_nothing_can_be_written_requests_go_on(home: Home, where: str) -> None:
    """A plain file stands where a folder has to be, which stops even the superuser."""
    rows = fresh_rows(20)
    if where == "run":
        shutil.rmtree(home.run, ignore_errors=True)  # the home that was copied may have served already
        home.run.write_text("")
    else:
        for domain in ("farm", "street"):
            overlay_folder(home.plot("tiny", domain, 1)).write_text("")
    with serving(home, Missing.COMPUTE) as service:
        ask(service, rows)
        time.sleep(0.2)
        computed = service.domains.events()["computed"]
        ask(service, rows)
        assert service.domains.events()["computed"] == computed


def test_retired_versions_are_closed_and_others_go_on(home: Home) -> None:
    registry = Registry.open(home)
    with serving(home, Missing.COMPUTE) as service:
        ask(service, fresh_rows(8))
        assert _mapped("farm@1/")
        held = service.domains.figures().entries
        for hplm in ("acme/topic", "acme/mood"):
            registry.delete_hplm(hplm)
        wait_until(lambda: not _mapped("farm@1/"))
        assert _mapped("street@1/")
        assert 0 < service.domains.figures().entries < held
        ask(service, [row for row in fresh_rows(8) if row[0] not in ("acme/topic", "acme/mood")])


def test_thousands_of_versions_leave_nothing_behind(home: Home) -> None:
    """Version after version is opened and let go; a version that comes back is opened again."""
    live = Registry.open(home).hplm("acme/topic").domain
    versions = [_copied(home, live, number) for number in range(2, 120)]
    domains = OpenDomains(home, FillingSettings(Missing.COMPUTE))
    for previous, domain in zip([live, *versions], versions, strict=False):
        domains.lower_model(previous).encode(["the cat saw a hammer"])
        half = domains.lower_model(domain)
        domains.close_unread(partial(frozenset, domain.folders))
        assert len(half.encode(["the cat saw a hammer"]).rows) == 1
    assert _mapped("farm@") == _mapped(f"{versions[-1].folders[0]}/") > 0
    assert len(domains.fillings()) == 1
    assert len(domains.lower_model(live).encode(["the cat"]).rows) == 1
    domains.close()
    del half
    assert _mapped("farm@") == 0


def _copied(home: Home, domain: DomainEntry, version: int) -> DomainEntry:
    folder = home.plot(domain.root, domain.name, version)
    folder.mkdir()
    for file in (home.path / domain.folders[0]).iterdir():
        (folder / file.name).hardlink_to(file)
    return DomainEntry(domain.root, domain.name, version, (home.relative(folder), *domain.folders[1:]))


def _mapped(part: str) -> int:
    """How many of this process's memory maps are of files whose path has this part."""
    return sum(part in line for line in Path("/proc/self/maps").read_text().splitlines())


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"missing": "guess"}, "'guess'.*fallback, compute, learn"),
        ({"overlay_mb": "0"}, "at least 1 MB"),
        ({"compute_limit": "0"}, "at least 1 fragment"),
        ({"dtype": "fp8"}, "one of bf16, fp32, int8, not 'fp8'"),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, parameters: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        FillingSettings.from_model(ModelSettings(Home(tmp_path), parameters))


def test_settings_travel_through_a_models_configuration(tmp_path: Path) -> None:
    settings = FillingSettings(Missing.LEARN, 12, 34, "fp32")
    assert FillingSettings.from_model(ModelSettings(Home(tmp_path), settings.parameters)) == settings
    assert FillingSettings.from_model(ModelSettings(Home(tmp_path), {})) == FillingSettings()
