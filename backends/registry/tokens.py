"""Tokens: who may ask whose hPLMs, or manage them, and until when.

A token is `hplm_<id>_<secret>` with 256 random bits of secret; the registry keeps its SHA-256, which is enough for a
secret that nobody can guess. Creating, rotating and revoking are publications: servers see them within a second.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from sqlalchemy import select
from sqlalchemy.orm import Session

from backends.errors import CorruptFileError, InvalidArgumentError, NotFoundError, shown
from backends.moments import shown_moment
from backends.names import check_hplm_id, check_name
from backends.registry.audit import note
from backends.registry.database import Database
from backends.registry.rows import ReadRows, read_rows, row_fields
from backends.registry.schema import AuditRow, TokenRow

EVERYTHING = "*"
_ID_BYTES, _SECRET_BYTES = 6, 32
_FORM = re.compile(r"hplm_([0-9a-f]{12})_[A-Za-z0-9_-]{43}", re.ASCII)
_TOKEN_CHARACTERS = 61
_ROTATION = "token.rotate"
_DIGEST = re.compile("[0-9a-f]{64}")


class Role(StrEnum):
    """What the holder of a token may do: `caller` asks hPLMs, the others use the manager."""

    CALLER = "caller"
    VIEWER = "viewer"
    TENANT_ADMIN = "tenant-admin"
    OPERATOR = "operator"
    ADMIN = "admin"

    @property
    def has_scope(self) -> bool:
        """Whether it is for one tenant; the other roles are for all."""
        return self in (Role.CALLER, Role.TENANT_ADMIN)


class Validity(StrEnum):
    VALID = "valid"
    FUTURE = "not valid yet"
    EXPIRED = "expired"
    REVOKED = "revoked"


@dataclass(frozen=True)
class TokenEntry:
    """What the registry keeps of one token; times are seconds since the epoch.

    Attributes:
        id: Names the token in commands and logs; it is part of it, and no secret.
        scope: A tenant, one hPLM as tenant/name, or `*` for all.
        sha256: Of the whole token.
        expires_at: None: never.
        revoked_at: None while it is not.
    """

    id: str
    scope: str
    role: Role
    sha256: bytes = field(repr=False)
    created_at: float
    not_before: float
    expires_at: float | None
    revoked_at: float | None

    @property
    def tenant(self) -> str:
        return self.scope.partition("/")[0]

    def allows(self, hplm: str) -> bool:
        """Whether an hPLM is within its scope."""
        return self.scope in (hplm, hplm.partition("/")[0], EVERYTHING)

    def validity(self, now: float) -> Validity:
        if self.revoked_at is not None:
            return Validity.REVOKED
        if self.expires_at is not None and now >= self.expires_at:
            return Validity.EXPIRED
        return Validity.VALID if now >= self.not_before else Validity.FUTURE


@dataclass(frozen=True)
class IssuedToken:
    """A new token; `text` is known here and to its holder only."""

    entry: TokenEntry
    text: str = field(repr=False)


def token_id(text: str) -> str | None:
    """Return the ID within a token; None where the text has not the form of one, however long it is."""
    match = _FORM.fullmatch(text) if len(text) == _TOKEN_CHARACTERS else None
    return match[1] if match else None


def token_digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("ascii")).digest()


def check_scope(scope: str, role: Role) -> str:
    """Check that a token of the role may have the scope."""
    if not role.has_scope:
        if scope != EVERYTHING:
            raise InvalidArgumentError(f"the role {role} is for all tenants, so it takes no scope, not {shown(scope)}")
        return scope
    if role is Role.CALLER and (scope == EVERYTHING or "/" in scope):
        return scope if scope == EVERYTHING else check_hplm_id(scope)
    return check_name(scope, "tenant")


class TokenTable:
    """The registry's tokens; each change is one publication."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(
        self,
        scope: str,
        role: Role = Role.CALLER,
        *,
        not_before: float | None = None,
        expires_at: float | None = None,
    ) -> IssuedToken:
        """Issue a token, valid from `not_before` (now) until `expires_at` (for ever)."""
        check_scope(scope, role)
        with self._database.publication() as (session, revision):
            issued = _issue(session, revision, scope, role, not_before, expires_at)
            note(session, "token.create", _shown(issued.entry), after=_shown_validity(issued.entry))
            return issued

    def rotate(self, id: str, grace_s: float, *, expires_at: float | None = None) -> IssuedToken:
        """Issue a token in place of one that stays valid for `grace_s`.

        Without `expires_at`, the new one is valid for as long as the old one was to be.

        Raises:
            InvalidArgumentError: The token has ended, or was rotated before: its planned end is not known any more.
        """
        if grace_s < 0:
            raise InvalidArgumentError("the old token cannot end before now")
        with self._database.publication() as (session, revision):
            row, now = _token_row(session, id), time.time()
            validity = _entry(row).validity(now)
            if validity in (Validity.EXPIRED, Validity.REVOKED):
                raise InvalidArgumentError(f"token {id} is {validity}; create another one")
            _require_not_rotated(session, id)
            before = f"{id}, {_shown_validity(_entry(row))}"
            if expires_at is None and row.expires_at is not None:
                expires_at = now + row.expires_at - row.not_before
            ends_at = now + grace_s
            row.expires_at = ends_at if row.expires_at is None else min(row.expires_at, ends_at)
            row.revision = revision
            issued = _issue(session, revision, row.scope, Role(row.role), None, expires_at)
            old = f"{id} until {shown_moment(row.expires_at)}"
            after = f"{issued.entry.id}, {_shown_validity(issued.entry)}; {old}"
            note(session, _ROTATION, _shown(issued.entry), before, after)
            return issued

    def revoke(self, id: str) -> TokenEntry:
        """Make a token invalid for good."""
        with self._database.publication() as (session, revision):
            row = _token_row(session, id)
            if row.revoked_at is not None:
                raise InvalidArgumentError(f"token {id} is revoked already")
            before = _shown_validity(_entry(row))
            row.revoked_at, row.revision = time.time(), revision
            note(session, "token.revoke", _shown(_entry(row)), before, "revoked")
            return _entry(row)

    def all(self, tenant: str | None = None) -> list[TokenEntry]:
        """Return the tokens of all scopes or of one tenant, the oldest first; invalid ones too."""
        with self._database.reading() as session:
            entries = _entries(session.scalars(select(TokenRow).order_by(TokenRow.id)))
        return [entry for entry in entries if tenant is None or entry.tenant == tenant]

    def find(self, id: str) -> TokenEntry | None:
        with self._database.reading() as session:
            row = session.scalars(select(TokenRow).where(TokenRow.token_id == id)).one_or_none()
            return None if row is None else _entry(row)

    def changed(self, after_revision: int) -> ReadRows[TokenEntry]:
        """Return the tokens that were created, rotated or revoked since a revision; a damaged one fails no other."""
        with self._database.reading() as session:
            return read_rows(
                session,
                TokenRow.token_id,
                TokenRow.revision > after_revision,
                lambda chosen: _entries(session.scalars(select(TokenRow).where(chosen))),
            )


def _issue(
    session: Session, revision: int, scope: str, role: Role, not_before: float | None, expires_at: float | None
) -> IssuedToken:
    now = time.time()
    starts_at = now if not_before is None else not_before
    if expires_at is not None and expires_at <= max(now, starts_at):
        raise InvalidArgumentError("a token cannot expire before it is valid")
    id = secrets.token_hex(_ID_BYTES)
    text = f"hplm_{id}_{secrets.token_urlsafe(_SECRET_BYTES)}"
    row = TokenRow(
        token_id=id,
        scope=scope,
        role=role.value,
        sha256=token_digest(text).hex(),
        created_at=now,
        not_before=starts_at,
        expires_at=expires_at,
        revision=revision,
    )
    session.add(row)
    session.flush()
    return IssuedToken(_entry(row), text)


def _require_not_rotated(session: Session, id: str) -> None:
    """Check that no token was issued in place of one; the audit log, which has each rotation, names that."""
    rotated = AuditRow.action == _ROTATION
    target = session.scalars(select(AuditRow.target).where(rotated, AuditRow.before.startswith(f"{id}, "))).first()
    if target is not None:
        new = target.removeprefix("token ").partition(",")[0]
        raise InvalidArgumentError(
            f"token {id} was rotated already, to {new}; if that was lost, rotate it in its turn: "
            f"hplm token rotate {new} --grace 0"
        )


def _shown(entry: TokenEntry) -> str:
    return f"token {entry.id}, {entry.role} of {entry.scope}"


def _shown_validity(entry: TokenEntry) -> str:
    end = "it is revoked" if entry.expires_at is None else shown_moment(entry.expires_at)
    return f"valid from {shown_moment(entry.not_before)} until {end}"


def _token_row(session: Session, id: str) -> TokenRow:
    row = session.scalars(select(TokenRow).where(TokenRow.token_id == id)).one_or_none()
    if row is None:
        raise NotFoundError(f"token {shown(id)} does not exist; 'hplm token list' shows their IDs")
    return row


def _entries(rows: Iterable[TokenRow]) -> list[TokenEntry]:
    return [_entry(row) for row in rows]


def _entry(row: TokenRow) -> TokenEntry:
    fields = row_fields(row, "a token")
    digest = fields.text("sha256")
    if not _DIGEST.fullmatch(digest):
        raise CorruptFileError(f"{fields.where} holds no SHA-256")
    return TokenEntry(
        fields.text("token_id"),
        fields.text("scope"),
        Role(fields.text("role", [role.value for role in Role])),
        bytes.fromhex(digest),
        fields.number("created_at"),
        fields.number("not_before"),
        None if row.expires_at is None else fields.number("expires_at"),
        None if row.revoked_at is None else fields.number("revoked_at"),
    )
