"""Which root is meant where nobody has to name one."""

from __future__ import annotations

from backends.errors import InvalidArgumentError, NotFoundError
from backends.registry.registry import Registry


def chosen_root(registry: Registry, name: str | None, named_by: str = "with --root") -> str:
    """The root that was named, or the only one there is; `named_by` tells the caller how to name one."""
    if name is not None:
        return registry.root(name).name
    roots = registry.roots()
    if not roots:
        raise NotFoundError("this home has no root yet; 'hplm root add' makes one")
    if len(roots) > 1:
        raise InvalidArgumentError(f"this home has {len(roots)} roots; name one {named_by}")
    return roots[0].name
