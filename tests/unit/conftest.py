from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from sqlalchemy import text

from backends.errors import UnavailableError
from backends.home import REGISTRY_VARIABLE
from backends.registry.database import Database
from bench.kit.scratch_postgres import ScratchPostgres, scratch_postgres
from seeds import SEED

POSTGRES_VARIABLE = "HPLM_TEST_POSTGRES_URL"


@pytest.fixture(params=[SEED], ids="seed={}".format)
def seed(request: pytest.FixtureRequest) -> int:
    """The run's seed, as a part of the test's name, so that a failure shows it."""
    return int(request.param)


@pytest.fixture(scope="session")
def scratch_server() -> Iterator[ScratchPostgres]:
    """A PostgreSQL server that is started for this run."""
    pytest.importorskip("psycopg", reason="needs hplm[postgres]")
    try:
        with scratch_postgres("fsync=off", "synchronous_commit=off", "full_page_writes=off") as server:
            yield server
    except UnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture
def registry_in_postgres(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Homes of this test keep their registry in PostgreSQL, in a database without a table."""
    url = os.environ.get(POSTGRES_VARIABLE) or request.getfixturevalue("scratch_server").url
    database = Database.connect(url)
    with database.engine.begin() as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
    database.close()
    monkeypatch.setenv(REGISTRY_VARIABLE, url)
