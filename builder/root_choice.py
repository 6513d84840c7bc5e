"""The choice of a root where naming one is optional."""

from __future__ import annotations

from backends.errors import InvalidArgumentError, NotFoundError
from backends.registry.registry import Registry


def chosen_root(registry: Registry, name: str | None, named_by: str = "with --root") -> str:
    """Return the named root, or the only one there is; `named_by` says in the error how to name one."""
    if name is not None:
        return registry.root(name).name
    roots = registry.roots()
    if not roots:
        raise NotFoundError("this home has no root yet; 'hplm root add' makes one")
    if len(roots) > 1:
        raise InvalidArgumentError(f"this home has {len(roots)} roots; name one {named_by}")
    return roots[0].name
