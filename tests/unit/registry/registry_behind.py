from __future__ import annotations

from sqlalchemy import text

from backends.home import Home
from backends.registry.database import Database


def execute(home: Home, *statements: str) -> None:
    """Change a registry behind its back."""
    database = Database.connect(home.registry_url)
    with database.engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))
    database.close()


def downgrade(home: Home, format_version: int, *statements: str) -> None:
    """Make the registry one of an earlier format, once `statements` have removed what came after it."""
    execute(
        home,
        *statements,
        "DROP TABLE servers",
        "ALTER TABLE hplm_versions DROP COLUMN retired_revision",
        *(["DROP TABLE audit_end"] if format_version < 5 else []),
        f"UPDATE state SET format_version = {format_version}",
    )
