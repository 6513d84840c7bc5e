"""Routes that read the registry."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Query

from builder.lifecycle.tree import version_trees
from builder.manager.api.access import ManagerOf, Overseer, Reader
from builder.manager.api.errors import answers
from builder.manager.api.views import (
    DomainList,
    DomainView,
    Health,
    HplmList,
    HplmView,
    RootList,
    Trees,
    VersionList,
)
from builder.manager.jobs import JobState

router = APIRouter(prefix="/v1", tags=["what there is"])
open_router = APIRouter(prefix="/v1", tags=["what there is"])


@open_router.get("/health")
def health(manager: ManagerOf) -> Health:
    """Whether the manager and its database answer, and how much there is to do; needs no token."""
    states = [job.state for job in manager.store.unfinished()]
    return Health(status="ok", queued=states.count(JobState.QUEUED), running=states.count(JobState.RUNNING))


@router.get("/roots", responses=answers())
def list_roots(manager: ManagerOf, _: Reader) -> RootList:
    """Pretrained models that domains branch from."""
    return RootList.model_validate({"roots": manager.registry.roots()})


@router.get("/domains", responses=answers(HTTPStatus.NOT_FOUND))
def list_domains(manager: ManagerOf, _: Reader, root: str | None = None) -> DomainList:
    """The live version of every domain."""
    named = None if root is None else manager.registry.root(root).name
    return DomainList.model_validate({"domains": manager.registry.domains(named)})


@router.get("/domains/{root}/{name}", responses=answers(HTTPStatus.NOT_FOUND))
def show_domain(manager: ManagerOf, _: Reader, root: str, name: str) -> DomainView:
    return DomainView.model_validate(manager.registry.domain(root, name))


@router.get("/domains/{root}/{name}/versions", responses=answers(HTTPStatus.NOT_FOUND))
def list_domain_versions(manager: ManagerOf, _: Reader, root: str, name: str) -> VersionList:
    """List the versions that a rollback can go back to."""
    return VersionList.model_validate({"versions": manager.registry.domain_versions(root, name)})


@router.get("/hplms", responses=answers(HTTPStatus.BAD_REQUEST))
def list_hplms(
    manager: ManagerOf,
    caller: Reader,
    tenant: Annotated[str | None, Query(description="Only this tenant's.", examples=["acme"])] = None,
    after: Annotated[str | None, Query(description="Only IDs that sort after this one.")] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 500,
) -> HplmList:
    """The live version of every hPLM, by ID; for a tenant-admin, its tenant's."""
    if caller.tenant is not None and tenant not in (None, caller.tenant):
        return HplmList(hplms=[], next_after=None)
    page = manager.registry.hplm_page(limit + 1, after, caller.tenant or tenant)
    shown = page[:limit]
    return HplmList.model_validate({"hplms": shown, "next_after": shown[-1].id if len(page) > limit else None})


@router.get("/hplms/{tenant}/{name}", responses=answers(HTTPStatus.NOT_FOUND))
def show_hplm(manager: ManagerOf, caller: Reader, tenant: str, name: str) -> HplmView:
    caller.require_hplm(f"{tenant}/{name}")
    return HplmView.model_validate(manager.registry.hplm(f"{tenant}/{name}"))


@router.get("/hplms/{tenant}/{name}/versions", responses=answers(HTTPStatus.NOT_FOUND))
def list_hplm_versions(manager: ManagerOf, caller: Reader, tenant: str, name: str) -> VersionList:
    """List the versions that a rollback can go back to."""
    caller.require_hplm(f"{tenant}/{name}")
    return VersionList.model_validate({"versions": manager.registry.hplm_versions(f"{tenant}/{name}")})


@router.get("/tree", responses=answers(HTTPStatus.NOT_FOUND))
def show_tree(manager: ManagerOf, _: Overseer, root: str | None = None) -> Trees:
    """Roots, the versions of their domains under their parents', and the hPLMs on each."""
    registry = manager.registry
    roots = registry.roots() if root is None else [registry.root(root)]
    return Trees.model_validate({"trees": version_trees(registry, [entry.name for entry in roots])})
