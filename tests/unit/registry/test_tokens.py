"""Tokens in the registry, and what a server knows of them."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from registry_behind import downgrade

from backends.errors import InvalidArgumentError, NotFoundError, UnauthorisedError
from backends.home import Home
from backends.registry import access
from backends.registry.access import AccessTokens, ForwardClock
from backends.registry.registry import Registry
from backends.registry.snapshot import RegistrySnapshot
from backends.registry.tokens import Role, TokenEntry, Validity, token_id
from waiting import wait_until

DAY_S = 86_400.0


def known(registry: Registry) -> AccessTokens:
    tokens = AccessTokens()
    tokens.apply(registry.tokens.changed(0).entries)
    return tokens


def test_a_new_token_is_valid_and_its_secret_is_not_kept(registry: Registry, home: Home) -> None:
    issued = registry.tokens.create("acme", expires_at=time.time() + DAY_S)
    assert known(registry).require(issued.text, Role.CALLER) == issued.entry
    assert (issued.entry.scope, issued.entry.role) == ("acme", Role.CALLER)
    secret = issued.text.split("_", 2)[2]  # its own characters may be underscores
    assert secret not in repr(issued)
    files = [path.read_bytes() for path in home.path.glob("registry.db*")]
    assert all(secret.encode() not in content for content in files)


def test_scopes(registry: Registry) -> None:
    allowed = [
        ("acme", "acme/x", True),
        ("acme", "acme2/x", False),
        ("acme/x", "acme/x", True),
        ("acme/x", "acme/xy", False),
        ("*", "globex/y", True),
    ]
    for scope, hplm, allows in allowed:
        assert registry.tokens.create(scope).entry.allows(hplm) is allows


@pytest.mark.parametrize(
    ("scope", "role"),
    [
        ("", Role.CALLER),
        ("a b", Role.CALLER),
        ("acme/", Role.CALLER),
        ("acme/x", Role.TENANT_ADMIN),
        ("*", Role.TENANT_ADMIN),
        ("acme", Role.OPERATOR),
    ],
)
def test_wrong_scopes_are_rejected(registry: Registry, scope: str, role: Role) -> None:
    with pytest.raises(InvalidArgumentError):
        registry.tokens.create(scope, role)
    assert registry.tokens.all() == []


def test_a_token_cannot_expire_before_it_is_valid(registry: Registry) -> None:
    for not_before, expires_at in ((None, time.time() - 1), (time.time() + DAY_S, time.time() + 1)):
        with pytest.raises(InvalidArgumentError, match="before it is valid"):
            registry.tokens.create("acme", not_before=not_before, expires_at=expires_at)


def test_rotation_leaves_the_old_token_for_a_while(registry: Registry) -> None:
    old = registry.tokens.create("acme", expires_at=time.time() + 90 * DAY_S)
    new = registry.tokens.rotate(old.entry.id, grace_s=DAY_S)
    assert (new.entry.scope, new.entry.role) == ("acme", Role.CALLER)
    assert new.entry.expires_at == pytest.approx(time.time() + 90 * DAY_S, abs=60)
    first, second = registry.tokens.all("acme")
    assert (first.id, second.id) == (old.entry.id, new.entry.id)
    now = time.time()
    assert [first.validity(now + days * DAY_S) for days in (0, 2)] == [Validity.VALID, Validity.EXPIRED]
    for text in (old.text, new.text):
        known(registry).require(text, Role.CALLER)
    registry.tokens.rotate(new.entry.id, grace_s=0)
    with pytest.raises(UnauthorisedError, match="is expired"):
        known(registry).require(new.text, Role.CALLER)
    with pytest.raises(InvalidArgumentError, match="is expired; create another one"):
        registry.tokens.rotate(new.entry.id, grace_s=0)
    with pytest.raises(InvalidArgumentError, match="cannot end before now"):
        registry.tokens.rotate(old.entry.id, grace_s=-1)


def test_a_rotation_is_not_repeated(registry: Registry) -> None:
    """Its token ends with the grace then, and nothing says for how long it was to be valid."""
    old = registry.tokens.create("acme").entry
    lost = registry.tokens.rotate(old.id, grace_s=DAY_S).entry
    for expires_at in (None, time.time() + DAY_S):
        with pytest.raises(
            InvalidArgumentError, match=f"{old.id} was rotated already, to {lost.id}; .* rotate {lost.id} --grace 0"
        ):
            registry.tokens.rotate(old.id, grace_s=DAY_S, expires_at=expires_at)
    new = registry.tokens.rotate(lost.id, grace_s=0).entry
    assert new.expires_at is None
    states = {entry.id: entry.validity(time.time()) for entry in registry.tokens.all()}
    assert states == {old.id: Validity.VALID, lost.id: Validity.EXPIRED, new.id: Validity.VALID}


def test_revocation_is_for_good(registry: Registry) -> None:
    issued = registry.tokens.create("acme")
    assert registry.tokens.revoke(issued.entry.id).validity(0.0) is Validity.REVOKED
    for change in (registry.tokens.revoke, lambda id: registry.tokens.rotate(id, 1.0)):
        with pytest.raises(InvalidArgumentError, match="revoked"):
            change(issued.entry.id)
        with pytest.raises(NotFoundError, match="'f00' does not exist"):
            change("f00")


def wrong_texts(issued: str) -> list[tuple[object, str]]:
    other_secret = issued[:-1] + ("A" if issued[-1] != "A" else "B")
    other_id = f"hplm_{'0' * 12}_{issued[18:]}"
    form = "has not the form"
    return [
        (None, "a token is needed"),
        ("", "a token is needed"),
        (7, form),
        (["hplm"], form),
        (" " + issued, form),
        (issued + "\n", form),
        ("ħ" + issued[1:], form),
        (issued[:-1] + "é", form),
        ("hplm_" + "a" * 1_000_000, form),
        (issued.upper(), form),
        (other_secret, "not one of this server's"),
        (other_id, "not one of this server's"),
    ]


def test_wrong_tokens_are_told_so(registry: Registry) -> None:
    issued = registry.tokens.create("acme").text
    tokens = known(registry)
    for text, words in wrong_texts(issued):
        with pytest.raises(UnauthorisedError, match=words) as caught:
            tokens.require(text, Role.CALLER)
        assert len(str(caught.value)) < 200
        assert issued not in str(caught.value)
    assert token_id(issued) == issued[5:17]


def test_tokens_that_are_not_valid_now_say_why(registry: Registry) -> None:
    future = registry.tokens.create("acme", not_before=time.time() + DAY_S)
    revoked = registry.tokens.create("acme")
    registry.tokens.revoke(revoked.entry.id)
    viewer = registry.tokens.create("*", Role.VIEWER)
    tokens = known(registry)
    for issued, words in ((future, "not valid yet"), (revoked, "revoked"), (viewer, "role viewer")):
        with pytest.raises(UnauthorisedError, match=f"token {issued.entry.id} .*{words}"):
            tokens.require(issued.text, Role.CALLER)
    assert tokens.require(viewer.text, Role.CALLER, Role.VIEWER) == viewer.entry


def test_a_clock_that_is_set_back_revives_no_token(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    issued = registry.tokens.create("acme", expires_at=time.time() + 100)
    tokens = known(registry)
    real = time.time
    monkeypatch.setattr(access.time, "time", lambda: real() + 200)
    with pytest.raises(UnauthorisedError, match="expired"):
        tokens.require(issued.text, Role.CALLER)
    monkeypatch.setattr(access.time, "time", lambda: real() - DAY_S)
    assert ForwardClock().now() < real()  # of a process that starts now
    assert tokens.require.__self__._clock.now() >= real() - 1


def test_revocation_reaches_running_servers(registry: Registry, open_registry: Callable[[], Registry]) -> None:
    issued = [registry.tokens.create("acme") for _ in range(4)]
    snapshot = RegistrySnapshot(open_registry())
    try:
        for one in issued:
            snapshot.tokens.require(one.text, Role.CALLER)
            registry.tokens.revoke(one.entry.id)
        wait_until(lambda: not any(is_valid(snapshot.tokens, one.text) for one in issued))
    finally:
        snapshot.close()


def is_valid(tokens: AccessTokens, text: str) -> bool:
    try:
        tokens.require(text, Role.CALLER)
    except UnauthorisedError:
        return False
    return True


def test_a_home_of_format_2_gets_the_table(
    registry: Registry, home: Home, open_registry: Callable[[], Registry]
) -> None:
    downgrade(home, 2, "DROP TABLE tokens")
    issued = open_registry().tokens.create("acme")
    assert [entry.id for entry in registry.tokens.all()] == [issued.entry.id]


def test_entries_show_no_digest() -> None:
    entry = TokenEntry("f00", "acme", Role.CALLER, b"digest", 0.0, 0.0, None, None)
    assert "digest" not in repr(entry)
