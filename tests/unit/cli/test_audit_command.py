"""`hplm audit`, on a copy of the tiny home."""

from __future__ import annotations

import json
from collections.abc import Callable

from sqlalchemy import text

from backends.home import Home
from backends.registry.database import Database


def test_what_was_changed_is_shown_and_damage_is_found(run_hplm: Callable[..., str], tiny_home: Home) -> None:
    def hplm(*arguments: str) -> str:
        return run_hplm(*arguments, "--home", tiny_home.path)

    hplm("quota", "set", "acme", "--weight", "3")
    hplm("quota", "set", "globex", "--weight", "2")
    last = json.loads(hplm("audit", "--json"))[-2]
    assert (last["action"], last["target"], last["after"]) == ("quota.set", "acme", "weight 3")
    assert "quota.set\tacme" in hplm("audit", "--since", "1h")
    of_globex = json.loads(hplm("audit", "--tenant", "globex", "--json"))
    assert of_globex and all("globex" in entry["target"] for entry in of_globex)
    assert json.loads(hplm("audit", "--since", "2999-01-01", "--json")) == []
    assert hplm("audit", "--since", "monday").startswith("hplm: --since: 'monday' is no time")
    database = Database.connect(tiny_home.registry_url)
    with database.engine.begin() as connection:
        connection.execute(text("UPDATE audit SET who = 'nobody' WHERE number = 2"))
    database.close()
    assert hplm("audit") == "hplm: the audit log was changed by hand: entry 2 is not as it was written"
