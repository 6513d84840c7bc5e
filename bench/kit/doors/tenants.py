"""A home of tenants that have the same hPLMs of several tasks each, and tokens of every kind."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from backends.adapters.recipe import AdapterRecipe
from backends.home import Home
from backends.registry.entries import HplmEntry
from backends.registry.registry import Registry
from bench.kit.bulk import NewHplm, NewToken, register_hplms, register_tokens
from bench.kit.synthetic_home import copy_manifest, link_or_copy
from bench.kit.tiny_home import build_tiny_home, ignore, write_pairs, write_tagged
from builder.construct.hplm.hplms import create_hplm
from builder.requests.hplms import CreateHplm

_MODELS = {"topic": "acme/topic", "pair": "acme/pair", "tags": "acme/tags"}
_TUNE = {"recipe": asdict(AdapterRecipe(width=8)), "epochs": 2, "learning_rate": 1e-2, "seed": 7}
_DAY_S = 86_400.0
RIGHT, FOREIGN, ABSENT, EXPIRED, FUTURE, EMPTY, HUGE, DOUBLED, REVOKED = (
    "right", "foreign", "absent", "expired", "future", "empty", "huge", "doubled", "revoked",
)  # fmt: skip
KINDS = (RIGHT, FOREIGN, ABSENT, EXPIRED, FUTURE, EMPTY, HUGE, DOUBLED, REVOKED)
_HUGE_CHARACTERS = 100_000


@dataclass(frozen=True)
class Shown:
    """What a caller shows: no token, one, or the same parameter twice (`again`)."""

    token: str | None
    again: str | None = None


@dataclass(frozen=True)
class TenantTokens:
    """`shown`: by tenant and kind, what a caller shows that asks this tenant's hPLMs."""

    home: Home
    tenants: Sequence[str]
    shown: Mapping[str, Mapping[str, Shown]]

    def right(self, tenant: str) -> str:
        token = self.shown[tenant][RIGHT].token
        assert token is not None
        return token


@contextmanager
def tenants_home(count: int) -> Iterator[TenantTokens]:
    with tempfile.TemporaryDirectory(prefix="hplm-bench-") as folder:
        home = build_tiny_home(Path(folder))
        tenants = [f"tenant{number:02}" for number in range(count)]
        _register(home, tenants, _models(home, Path(folder) / "work"))
        yield TenantTokens(home, tenants, _tokens(home, tenants))


def _models(home: Home, work: Path) -> dict[str, HplmEntry]:
    registry = Registry.open(home)
    for hplm, write in (("acme/pair", write_pairs), ("acme/tags", write_tagged)):
        train, dev = write(work / hplm.replace("/", "-"), 7)
        create_hplm(
            home,
            registry,
            CreateHplm(id=hplm, root="tiny", domain="farm", train=train, dev=dev, tune=_TUNE),
            ignore,
        )
    models = {name: registry.hplm(hplm) for name, hplm in _MODELS.items()}
    registry.close()
    return models


def _register(home: Home, tenants: Sequence[str], models: Mapping[str, HplmEntry]) -> None:
    """Give each tenant the models under its own name."""
    new = []
    for tenant in tenants:
        for name, model in models.items():
            source, target = home.path / model.folder, home.bank("tiny", f"{tenant}/{name}", 1)
            target.mkdir()
            for file in source.iterdir():
                link_or_copy(file, target / file.name)
            (target / "manifest.json").unlink()
            copy_manifest(source, target, f"{tenant}/{name}")
            folder = home.relative(target)
            new.append(
                NewHplm(
                    f"{tenant}/{name}", model.domain, folder, model.task, model.labels, dict(model.metrics), model.pair
                )
            )
    register_hplms(home, new)


def _tokens(home: Home, tenants: Sequence[str]) -> dict[str, dict[str, Shown]]:
    now = time.time()
    made = {
        RIGHT: [NewToken(tenant) for tenant in tenants],
        EXPIRED: [NewToken(tenant, expires_at=now - 1) for tenant in tenants],
        FUTURE: [NewToken(tenant, not_before=now + _DAY_S) for tenant in tenants],
        REVOKED: [NewToken(tenant, revoked_at=now - 1) for tenant in tenants],
    }
    texts = {kind: register_tokens(home, tokens) for kind, tokens in made.items()}
    shown: dict[str, dict[str, Shown]] = {}
    for number, tenant in enumerate(tenants):
        right, other = texts[RIGHT][number], texts[RIGHT][(number + 1) % len(tenants)]
        shown[tenant] = {
            **{kind: Shown(of_kind[number]) for kind, of_kind in texts.items()},
            FOREIGN: Shown(other),
            ABSENT: Shown(None),
            EMPTY: Shown(""),
            HUGE: Shown(right + "x" * _HUGE_CHARACTERS),
            DOUBLED: Shown(right, other),
        }
    return shown
