"""Who calls the manager, and what that caller may see and change."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass

from backends.errors import ForbiddenError, NotFoundError, UnauthorisedError
from backends.registry.access import TokenCheck
from backends.registry.tokens import Role, TokenEntry
from builder.manager.jobs import Job, hplm_targets
from builder.manager.uploads import Upload
from builder.requests.hplms import HplmRequest
from builder.requests.jobs import JobRequest


@dataclass(frozen=True)
class Caller:
    """One caller; `tenant` is whose affairs are all that it sees and changes, None for those of all."""

    name: str
    role: Role
    tenant: str | None = None
    address: str | None = None

    @property
    def shown(self) -> str:
        """The caller in the audit log."""
        return f"{self.name} at the manager" + (f", from {self.address}" if self.address else "")

    def require_hplm(self, hplm: str) -> None:
        """Check that the caller may see an hPLM; another tenant's does not exist."""
        if self.tenant is not None and hplm.partition("/")[0] != self.tenant:
            raise NotFoundError(f"hPLM {hplm!r} does not exist")

    def require_job(self, job: Job) -> Job:
        if self.tenant is not None and not job.target.startswith(hplm_targets(self.tenant)):
            raise NotFoundError(f"job {job.id} does not exist")
        return job

    def require_upload(self, upload: Upload) -> Upload:
        if self.tenant is not None and upload.tenant != self.tenant:
            raise NotFoundError(f"upload {upload.id!r} does not exist")
        return upload

    def require_request(self, request: JobRequest, upload_of: Callable[[str], Upload]) -> None:
        """Check that the caller may have a job, and that a tenant's uploads are its own.

        Admins may have all jobs, tenants' admins those about their hPLMs, operators those about anything else.
        """
        allowed = Role.TENANT_ADMIN if isinstance(request, HplmRequest) else Role.OPERATOR
        if self.role not in (allowed, Role.ADMIN):
            raise ForbiddenError(f"the role {self.role} may not have a job of the kind {request.kind}")
        if isinstance(request, HplmRequest):
            self.require_hplm(request.id)
        for upload in request.files if self.tenant is not None else ():
            self.require_upload(upload_of(str(upload)))


ANYBODY = Caller("anybody", Role.ADMIN)
"""The caller where none needs a token."""


class Callers:
    """Knows callers by their tokens: those of the registry if `with_tokens`, and that of the manager's file.

    Without both, everybody is an admin.
    """

    def __init__(self, find: Callable[[str], TokenEntry | None], with_tokens: bool, file_token: str | None) -> None:
        self._check = TokenCheck(find, "Authorization: Bearer …") if with_tokens else None
        self._file_token = file_token

    @property
    def need_token(self) -> bool:
        return self._check is not None or self._file_token is not None

    def require(self, text: str, roles: Collection[Role]) -> Caller:
        """Return the caller that shows a token, if it has one of the roles.

        Raises:
            UnauthorisedError: The token is missing or no good; ForbiddenError: Its role is none of these.
        """
        if self._file_token is not None and secrets.compare_digest(text.encode(), self._file_token.encode()):
            return Caller("the token file", Role.ADMIN)
        if self._check is not None:
            entry = self._check.require(text, *roles)
            return Caller(f"token {entry.id}", entry.role, entry.tenant if entry.role is Role.TENANT_ADMIN else None)
        if self._file_token is not None:
            raise UnauthorisedError("this manager needs its token: Authorization: Bearer …")
        return ANYBODY
