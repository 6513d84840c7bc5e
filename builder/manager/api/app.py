"""The service as a whole."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.middleware.trustedhost import TrustedHostMiddleware

from builder.manager.api import errors, jobs, reads, uploads
from builder.manager.api.bodies import LimitedBodies
from builder.manager.api.browsers import LOOPBACK_HOSTS, SameOrigin
from builder.manager.manager import Manager

_DESCRIPTION = """
Upload a corpus or a task file, ask for a job with it, watch the job, and a running server answers with what it made.

Jobs run in processes of their own. They survive this service: what was queued stays queued, what was running goes on.
Nothing is ever half published: until a job is done, servers answer with the version before.
"""


class ManagerApi(FastAPI):
    def openapi(self) -> dict[str, Any]:
        """Describe the API, less answer 422, because we say 400 to all errors, and the token if there is none."""
        description = super().openapi()
        for operations in description["paths"].values():
            for operation in operations.values():
                operation["responses"].pop("422", None)
                if not self.state.manager.callers.need_token:
                    operation.pop("security", None)
        return description


def create_app(manager: Manager) -> FastAPI:
    """The application; its supervisor and its housekeeping run for as long as it does."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        manager.housekeeping.start()
        manager.supervisor.start()
        try:
            yield
        finally:
            await run_in_threadpool(manager.supervisor.stop)
            await run_in_threadpool(manager.housekeeping.stop)

    app = ManagerApi(title="hPLM manager", version="1", description=_DESCRIPTION, lifespan=lifespan)
    app.state.manager = manager
    errors.install(app)
    if not manager.callers.need_token:
        app.add_middleware(SameOrigin)
    if not manager.callers.need_token and manager.is_local:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=LOOPBACK_HOSTS, www_redirect=False)
    app.add_middleware(LimitedBodies, uploads_path=uploads.router.prefix)
    for router in (uploads.router, jobs.router, reads.open_router, reads.router):
        app.include_router(router)
    return app
