"""A registry whose rows say what no release writes is damaged, and says so in one line."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from backends.errors import CorruptFileError
from backends.home import Home
from backends.registry.snapshot import RegistrySnapshot


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE state SET format_version = 'four'",
        "UPDATE hplm_versions SET labels = 'no JSON'",
        "UPDATE hplm_versions SET labels = '{}'",
        "UPDATE hplm_versions SET folder = x'00ff'",
        "UPDATE hplm_versions SET metrics = '[]'",
        """UPDATE hplm_versions SET metrics = '{"ladder": {"after": 1, "layers": 0, "answered_early": 0.5}}'""",
        """UPDATE hplm_versions SET metrics = '{"declared": {"default_deadline": true}}'""",
        "UPDATE domain_versions SET folders = '7'",
        "UPDATE hplm_versions SET domain_version_id = 999",
    ],
)
def test_a_row_that_no_release_writes(statement: str, tiny_home: Home) -> None:
    with closing(sqlite3.connect(tiny_home.path / "registry.db")) as database:
        database.execute(statement)
        database.commit()
    with pytest.raises(CorruptFileError) as caught:
        RegistrySnapshot.open(tiny_home).close()
    assert "registry" in str(caught.value)
