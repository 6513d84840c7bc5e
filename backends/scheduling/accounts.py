"""What tenants are charged for their rows: on entering the queue, on settling, and where rows took more or less."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from backends.scheduling.batch_fill import BatchFill
from backends.scheduling.cost_model import BatchShape
from backends.scheduling.estimator import LiveCosts
from backends.scheduling.fair_share import FairShare, ShareBuckets
from backends.scheduling.settings import ShareSettings
from backends.scheduling.waiting_room import Waiting
from backends.stack_key import StackKey


class Predicted(Waiting, Protocol):
    """A job as predictions see it."""

    @property
    def tenant(self) -> str: ...


JobT = TypeVar("JobT", bound=Predicted)


class Charge(NamedTuple):
    """What a job costs its tenant: its work, and its part of what a full batch takes anyway."""

    us: float
    of_bucket: bool
    saves_us: float
    """How much less it would be if the job settled."""

    @property
    def settled(self) -> Charge:
        return self._replace(us=self.us - self.saves_us, saves_us=0.0)


class Accounts(Generic[JobT]):
    """The tenants' accounts (`shares`, `buckets`), and the charge of each job that waits.

    Args:
        costs_of: A stack's costs.
        fill: Told here of each job that enters or leaves.
        settings: Weights and bursts.
    """

    def __init__(self, costs_of: Callable[[StackKey], LiveCosts], fill: BatchFill, settings: ShareSettings) -> None:
        self.shares = FairShare(settings)
        self.buckets = ShareBuckets(settings)
        self._costs_of = costs_of
        self._fill = fill
        self._charges: dict[JobT, Charge] = {}
        self._saves_us: dict[str, float] = defaultdict(float)
        self._hplms: dict[str, set[int]] = defaultdict(set)

    def charge_of(self, job: JobT) -> Charge:
        return self._charges[job]

    def saves_us(self, tenant: str) -> float:
        """How much less the jobs of a tenant would be charged if all of them settled."""
        return self._saves_us.get(tenant, 0.0)

    def hplms_of(self, tenant: str) -> list[int]:
        """Return the keys of the hPLM versions that a tenant's jobs are of which wait; some may wait no longer."""
        return list(self._hplms.get(tenant, ()))

    def enter(self, job: JobT, pays_bucket: bool) -> Charge:
        """Charge a job that waits from now on."""
        model, num_tokens = self._costs_of(job.root).model, job.num_tokens
        work_us = model.row_us(num_tokens, job.depth)
        saves_us = work_us - model.row_us(num_tokens, min(job.depth, job.least_depth))
        charge = Charge(self._fill.row_us(num_tokens, work_us, model), pays_bucket, saves_us)
        self._charges[job] = charge
        self._saves_us[job.tenant] += saves_us
        self._hplms[job.tenant].add(job.hplm_key)
        self.shares.enter(job.tenant, charge.us)
        if pays_bucket:
            self.buckets.use(job.tenant, charge.us)
        self._fill.enter(job.hplm_key)
        return charge

    def put_back(self, job: JobT) -> None:
        """Take in a job that was taken for a batch, whose tenant has paid."""
        self.shares.give_back(job.tenant, self.enter(job, pays_bucket=False).us)

    def recharge(self, job: JobT, charge: Charge) -> None:
        """Charge a job that waits this in place of what it was charged."""
        before, self._charges[job] = self._charges[job], charge
        self._saves_us[job.tenant] += charge.saves_us - before.saves_us
        self.shares.give_back(job.tenant, before.us - charge.us)
        if charge.of_bucket:
            self.buckets.charge(job.tenant, charge.us - before.us)

    def serve(self, jobs: Sequence[JobT]) -> None:
        """Forget jobs that are about to run; their tenants have paid for them."""
        self.shares.serve(sum(self._charges[job].us for job in jobs))
        for job in jobs:
            self._leave(job)

    def drop(self, job: JobT) -> None:
        """Forget a job that will not run; its tenant does not pay."""
        charge = self._leave(job)
        self.shares.give_back(job.tenant, charge.us)
        if charge.of_bucket:
            self.buckets.charge(job.tenant, -charge.us)

    def spend(self, tenant: str, cost_us: float) -> None:
        """Put on a tenant's accounts, or take off, what was spent elsewhere than was charged."""
        self.shares.give_back(tenant, -cost_us)
        self.buckets.charge(tenant, cost_us)

    def spend_batches(self, tenants: Sequence[str], stack: StackKey, shapes: Sequence[BatchShape]) -> None:
        """Put batches on the accounts of the tenants, in equal parts, whose rows made them necessary."""
        cost_us = sum(map(self._costs_of(stack).predict_us, shapes)) / len(tenants)
        for tenant in tenants:
            self.spend(tenant, cost_us)

    def spend_depth(self, job: JobT, passed: float) -> None:
        """Put on a tenant's accounts, or take off, what a row took that left the layers elsewhere than was likely."""
        if passed != job.depth:
            model = self._costs_of(job.root).model
            took_us, likely_us = (model.row_us(job.num_tokens, depth) for depth in (passed, job.depth))
            self.spend(job.tenant, took_us - likely_us)

    def _leave(self, job: JobT) -> Charge:
        self.shares.leave(job.tenant)
        self._fill.leave(job.hplm_key)
        charge = self._charges.pop(job)
        self._saves_us[job.tenant] -= charge.saves_us
        if not self.shares.rows_of(job.tenant):
            del self._saves_us[job.tenant], self._hplms[job.tenant]
        return charge
