"""Commands about versions, on a copy of the tiny home."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from sqlalchemy import update

import cli
from backends.home import Home
from backends.process_id import ProcessId
from backends.registry.database import Database
from backends.registry.position import START
from backends.registry.registry import Registry
from backends.registry.schema import HplmVersionRow
from backends.registry.servers import ServerEntry

Run = Callable[..., str]


@pytest.fixture
def run(tiny_home: Home, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command on the home; what it prints, or the reason why it fails."""

    def run_it(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["hplm", *arguments, "--home", str(tiny_home.path)])
        try:
            cli.main()
        except SystemExit as stop:
            printed = capsys.readouterr()
            return printed.err.strip() if stop.code and not printed.out else printed.out
        return capsys.readouterr().out

    return run_it


@pytest.fixture
def registry(tiny_home: Home) -> Registry:
    return Registry.open(tiny_home)


def publish_again(home: Home, registry: Registry, hplm: str) -> None:
    entry = registry.hplm(hplm)
    target = home.bank("tiny", hplm, entry.version + 1)
    shutil.copytree(home.path / entry.folder, target)
    parts = (hplm, entry.domain, entry.task, entry.labels, home.relative(target), entry.metrics)
    registry.publish_hplm(*parts)


def publish_domain_again(home: Home, registry: Registry, name: str) -> None:
    live = registry.domain("tiny", name)
    target = home.plot("tiny", name, live.version + 1)
    shutil.copytree(home.path / live.folders[0], target)
    registry.publish_domain("tiny", name, home.relative(target), registry.domain_parent(live), live.metrics)


def test_what_is_damaged_is_found(run: Run, tiny_home: Home, registry: Registry) -> None:
    chance = random.Random(7)
    assert "are as they were written" in run("verify")
    folders = sorted(registry.known_folders())
    one_of_each = {folder.split("/")[0]: folder for folder in folders}
    assert set(one_of_each) == {"roots", "plots", "bank"}
    for folder in one_of_each.values():
        for path in sorted((tiny_home.path / folder).iterdir()):
            whole = path.read_bytes()
            if path.name in ("counts.safetensors", "trained_on.hashes", "chosen_by.hashes"):  # no server reads them
                continue
            place = chance.randrange(len(whole))
            path.unlink()  # homes of tests share their files
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            found = json.loads(run("verify", "--json"))
            assert [damage["folder"] for damage in found["damaged"]] == [folder], path
            path.unlink()
            assert [damage["folder"] for damage in json.loads(run("verify", "--json"))["damaged"]] == [folder], path
            path.write_bytes(whole)
    (tiny_home.path / folders[0] / "manifest.json").write_text("{}")
    shutil.rmtree(tiny_home.path / folders[-1])
    assert [damage["folder"] for damage in json.loads(run("verify", "--json"))["damaged"]] == [folders[-1], folders[0]]
    assert json.loads(run("verify", "--json"))["num_folders"] == len(folders)


def test_what_lies_in_the_place_of_another_is_found(run: Run, tiny_home: Home) -> None:
    for taken, other in (("bank/tiny/acme--topic@1", "globex--topic@1"), ("plots/tiny/farm@1", "street@1")):
        folder = tiny_home.path / taken
        shutil.rmtree(folder)
        shutil.copytree(folder.with_name(other), folder)
    damaged = json.loads(run("verify", "--json"))["damaged"]
    assert [damage["folder"] for damage in damaged] == ["plots/tiny/farm@1", "bank/tiny/acme--topic@1"]
    assert "'street@1', where the registry says 'farm@1'" in damaged[0]["complaint"]


def retired_long_ago(home: Home) -> None:
    database = Database.connect(home.registry_url)
    with database.engine.begin() as connection:
        retired = update(HplmVersionRow).where(HplmVersionRow.retired_at.is_not(None))
        connection.execute(retired.values(retired_at=time.time() - 3600))
    database.close()


def test_rolling_an_hplm_back(run: Run, tiny_home: Home, registry: Registry) -> None:
    for _ in range(2):
        publish_again(tiny_home, registry, "acme/topic")
    assert "acme/topic is at version 2 again, tuned on farm@1" in run("rollback", "acme/topic")
    assert "at version 3 again" in run("rollback", "acme/topic", "--to", "3")
    assert run("rollback", "acme/topic", "--to", "9") == "hplm: hPLM 'acme/topic' has no version 9; there are 1, 2, 3"
    history = json.loads(run("versions", "acme/topic", "--json"))
    assert [(row["version"], row["live"]) for row in history] == [(1, False), (2, False), (3, True)]
    assert {"domain", "task", "metric", "value", "published"} <= set(history[0])
    assert "farm@1" in run("versions", "acme/topic")


def test_pinning(run: Run, tiny_home: Home, registry: Registry) -> None:
    publish_domain_again(tiny_home, registry, "farm")
    assert run("pin", "acme/topic") == "updates of acme/topic stay on farm@1\n"
    assert "stay on farm@2; version 1 serves on farm@1" in run("pin", "acme/topic", "--domain-version", "2")
    assert registry.domain_for_update("acme/topic").label == "farm@2"
    run("pin", "acme/topic", "--domain-version", "1")
    assert "farm@2" in run("unpin", "acme/topic")
    assert "no version 7" in run("pin", "acme/topic", "--domain-version", "7")


def test_domains_roll_back_and_go(run: Run, tiny_home: Home, registry: Registry) -> None:
    publish_domain_again(tiny_home, registry, "farm")
    assert "domain farm is at version 1 again" in run("domain", "rollback", "farm")
    assert "2" in run("domain", "versions", "farm")
    refusal = run("domain", "delete", "farm")
    assert refusal == "hplm: domain 'farm' cannot be deleted: acme/mood, acme/topic need it"
    for hplm in ("acme/mood", "acme/topic"):
        run("delete", hplm)
    assert "domain farm is deleted" in run("domain", "delete", "farm")
    assert [row["name"] for row in json.loads(run("domain", "list", "--json"))] == ["general", "street"]
    assert "domain 'street', globex/topic, initech/mood need it" in run("root", "delete", "tiny")


def test_garbage(run: Run, tiny_home: Home, registry: Registry) -> None:
    for _ in range(3):
        publish_again(tiny_home, registry, "acme/topic")
    (freed, why) = run("gc", "--dry-run").splitlines()  # all of them were live less than a minute ago
    assert freed == "would free 0.0 MiB"
    assert why.startswith("--keep, --grace and --unfinished leave 3 versions or remains of builds, ")
    assert f"'hplm gc --dry-run --keep 0 --grace 0 --unfinished 0 --home {tiny_home.path}' lists them" in why
    lists = run("gc", "--dry-run", "--keep", "0", "--grace", "0", "--unfinished", "0")
    assert [f"acme/topic@{version}" in lists for version in (1, 2, 3, 4)] == [True, True, True, False]
    assert run("gc").splitlines() == ["freed 0.0 MiB", why]
    retired_long_ago(tiny_home)
    report = json.loads(run("gc", "--dry-run", "--json"))
    assert [removal["name"] for removal in report["removed"]] == ["acme/topic@1", "acme/topic@2"]
    assert report["size_bytes"] == sum(removal["size_bytes"] for removal in report["removed"]) > 1000
    assert "would free" in run("gc", "--dry-run")
    assert "acme/topic@1" in run("gc")
    assert not tiny_home.bank("tiny", "acme/topic", 1).exists()
    assert [row["version"] for row in json.loads(run("versions", "acme/topic", "--json"))] == [3, 4]
    run("gc", "--keep", "0")
    assert run("gc", "--keep", "0").splitlines()[-1] == "every version is live, pinned, or under one that is"
    assert run("gc", "--keep", "-1") == "hplm: keep must be at least 0, not -1"


def test_garbage_that_a_server_elsewhere_may_serve(run: Run, tiny_home: Home, registry: Registry) -> None:
    for _ in range(2):
        publish_again(tiny_home, registry, "acme/topic")
    retired_long_ago(tiny_home)
    elsewhere = ProcessId("another machine", 1, 1)
    server = ServerEntry(7, "host-b/hplm_lower_0_0", elsewhere, START, time.time() - 30, serves_for_s=3600.0)
    registry.servers.tell(server)
    freed, stay = run("gc", "--keep", "0").splitlines()
    assert freed == "freed 0.0 MiB"
    assert stay.startswith(
        "2 versions stay, because a server may still answer with them: host-b/hplm_lower_0_0 (heard of 3"
    )
    assert json.loads(run("gc", "--keep", "0", "--json"))["served"] == ["acme/topic@1", "acme/topic@2"]
    told = "hplm: --server-silence: '-1s' is no time such as 500ms, 30s, 5m, 24h or 0"
    assert run("gc", "--server-silence", "-1s") == told
    assert "acme/topic@1" in run("gc", "--keep", "0", "--server-silence", "10s")


def test_the_tree(run: Run, tiny_home: Home, registry: Registry) -> None:
    publish_domain_again(tiny_home, registry, "farm")
    run("pin", "acme/topic")
    drawn = run("tree")
    for part in ("tiny: 4 hPLMs", "general@1", "farm@2", "acme/topic@1", "pinned to farm@1", "not live"):
        assert part in drawn
    (root,) = json.loads(run("tree", "--json", "--root", "tiny"))
    (general,) = root["domains"]
    assert [domain["domain"] for domain in general["domains"]] == ["farm@1", "farm@2", "street@1"]
    assert [hplm["id"] for hplm in general["domains"][0]["hplms"]] == ["acme/mood", "acme/topic"]


def test_a_tree_of_many_stays_readable(run: Run, registry: Registry) -> None:
    entry = registry.hplm("globex/topic")
    for number in range(40):
        registry.publish_hplm(f"many/t{number}", entry.domain, "classification", ["a"], entry.folder, {})
    drawn = run("tree")
    assert "42 hPLMs" in drawn
    assert "and 34 more; --all shows them" in drawn
    assert len(drawn.splitlines()) < 25
    (newest,) = (line for line in drawn.splitlines() if "newest" in line)
    assert "many/t39@1" in newest
    assert len(run("tree", "--all").splitlines()) > 45


def test_the_list(run: Run, registry: Registry) -> None:
    entry = registry.hplm("globex/topic")
    metrics = {"main_metric": "f1", "dev_f1": 0.75}
    registry.publish_hplm("globex/names", entry.domain, "ner", ["person"], entry.folder, metrics)
    registry.publish_hplm("imported/one", entry.domain, "classification", ["a"], entry.folder, {})
    (row,) = json.loads(run("list", "--json", "--tenant", "globex", "--task", "ner"))
    expected = {"id": "globex/names", "version": 1, "domain": "street@1", "task": "ner", "metric": "f1", "value": 0.75}
    assert row == expected
    assert len(json.loads(run("list", "--json", "--domain", "street"))) == 4
    assert json.loads(run("list", "--json", "--domain", "street@2")) == []
    assert "imported/one" in run("list")


def test_a_long_list_is_plain(run: Run, registry: Registry) -> None:
    entry = registry.hplm("globex/topic")
    for number in range(210):
        registry.publish_hplm(f"many/t{number}", entry.domain, "classification", ["a"], entry.folder, {})
    lines = run("list").splitlines()
    assert lines[0].split() == ["id", "version", "domain", "task", "metric", "value"]
    assert len(lines) == 1 + 214
    assert all("street@1" in line or "farm@1" in line for line in lines[1:])


def test_reading_the_registry_loads_no_model_code() -> None:
    """What `hplm list` costs is mostly imports."""
    heavy = ("torch", "transformers", "tritonclient", "safetensors", "fastapi", "ray", "matplotlib")
    code = f"import sys, cli; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize(("width", "is_table"), [(80, False), (200, True)])
def test_no_cell_is_folded_on_a_terminal(run: Run, monkeypatch: pytest.MonkeyPatch, width: int, is_table: bool) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    shown = run("versions", "acme/topic")
    (line,) = (line for line in shown.splitlines() if "classification" in line)
    assert re.search(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", line), shown
    assert ("│" in line) == is_table
    assert len(line) <= width


def test_a_damaged_page_of_the_registry_is_found(run: Run, tiny_home: Home) -> None:
    """What is read of it may be whole yet."""
    path = tiny_home.path / "registry.db"
    whole = path.read_bytes()
    found = []
    for page in range(4096, len(whole), 4096):
        damaged = bytearray(whole)
        damaged[page : page + 4096] = bytes(each ^ 0x5A for each in whole[page : page + 4096])
        path.unlink()
        path.write_bytes(damaged)
        found.append(run("verify"))
    assert len(found) > 3
    assert all("the registry" in told and "damaged" in told for told in found), found
    path.unlink()
    path.write_bytes(whole)
    assert "are as they were written" in run("verify")
