"""Requests to begin with, as the description of the service shows them."""

from __future__ import annotations

from fastapi.openapi.models import Example

from builder.requests.base import EXAMPLE_ADAPTER, EXAMPLE_CORPUS, EXAMPLE_TASK


def _example(summary: str, **value: object) -> Example:
    return {"summary": summary, "value": value}


JOB_EXAMPLES: dict[str, Example] = {
    "domain.create": _example(
        "A domain from a corpus", kind="domain.create", name="shop", corpus=[EXAMPLE_CORPUS], theta=0.01
    ),
    "domain.update": _example(
        "The next version of a domain", kind="domain.update", name="shop", corpus=[EXAMPLE_CORPUS]
    ),
    "domain.rollback": _example("Back to a domain's first version", kind="domain.rollback", name="shop", version=1),
    "domain.delete": _example("Without the domain", kind="domain.delete", name="shop"),
    "hplm.create": _example(
        "An hPLM from labelled texts",
        kind="hplm.create",
        id="acme/returns",
        domain="shop",
        task="classification",
        train=EXAMPLE_TASK,
        dev=EXAMPLE_TASK,
        tune={"epochs": 8},
    ),
    "hplm.update": _example(
        "The next version of an hPLM", kind="hplm.update", id="acme/returns", train=EXAMPLE_TASK, dev=EXAMPLE_TASK
    ),
    "hplm.create with a ladder": _example(
        "An hPLM whose easy texts are answered early, at a certified cost",
        kind="hplm.create",
        id="acme/returns",
        domain="shop",
        train=EXAMPLE_TASK,
        dev=EXAMPLE_TASK,
        ladder={"held_out": EXAMPLE_TASK, "max_drop": 1.0},
    ),
    "hplm.select": _example(
        "Such a ladder for an hPLM that exists",
        kind="hplm.select",
        id="acme/returns",
        train=EXAMPLE_TASK,
        held_out=EXAMPLE_TASK,
        max_drop=1.0,
    ),
    "hplm.rollback": _example("Back to the version before", kind="hplm.rollback", id="acme/returns"),
    "hplm.pin": _example("Hold it on its domain's version", kind="hplm.pin", id="acme/returns"),
    "hplm.import": _example(
        "A PEFT or AdapterHub adapter", kind="hplm.import", id="acme/returns", domain="shop", adapter=EXAMPLE_ADAPTER
    ),
    "hplm.delete": _example("Without the hPLM", kind="hplm.delete", id="acme/returns"),
    "students.make": _example(
        "A root's students", kind="students.make", root="base", corpus=[EXAMPLE_CORPUS], settings={"count": 2}
    ),
    "students.add": _example(
        "An hPLM that its root's students answer too",
        kind="students.add",
        id="acme/returns",
        train=EXAMPLE_TASK,
        dev=EXAMPLE_TASK,
    ),
    "gc": _example("What could be removed", kind="gc", dry_run=True),
}
