"""A Locust worker: `python -m loadtest.generator.worker HOST PORT`; ends when its master says so or is gone."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from locust.runners import WorkerRunner

from loadtest.generator.messages import Finished, MessageName, Share
from loadtest.generator.user import LoadEnvironment
from loadtest.outcome import Outcome

_OWNED = "--owned"
"""The master holds this process's stdin open; when it closes, the master is gone."""


class Worker:
    def __init__(self, host: str, port: int) -> None:
        self._environment = LoadEnvironment(self._send_outcomes, self._send_finished)
        self._runner: WorkerRunner = self._environment.create_worker_runner(host, port)
        self._runner.register_message(MessageName.SHARE, self._take_share)
        self._runner.register_message(MessageName.GO, self._take_go)
        self._runner.register_message(MessageName.REJECTED, self._take_rejection)
        self._rejection: str | None = None

    def run(self) -> str | None:
        """Wait until the master says that this worker may end; returns why it was rejected, if it was."""
        self._runner.greenlet.join()
        return self._rejection

    def _take_share(self, environment: LoadEnvironment, msg: Any, **_: Any) -> None:
        environment.share.set(Share.from_message(msg.data))
        self._runner.send_message(MessageName.ARMED)

    def _take_go(self, environment: LoadEnvironment, msg: Any, **_: Any) -> None:
        """Convert second 0 from the wall clock, which machines share, to this machine's monotonic clock."""
        environment.go.set(time.monotonic() + msg.data["starts_at_unix"] - time.time())

    def _take_rejection(self, environment: LoadEnvironment, msg: Any, **_: Any) -> None:
        self._rejection = msg.data["reason"]
        self._runner.quit()

    def _send_outcomes(self, outcomes: Sequence[Outcome]) -> None:
        self._runner.send_message(MessageName.OUTCOMES, {"rows": [tuple(outcome) for outcome in outcomes]})

    def _send_finished(self, finished: Finished) -> None:
        self._runner.send_message(MessageName.FINISHED, asdict(finished))


def _end_with_master() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


def main() -> None:
    host, port, *rest = sys.argv[1:]
    if _OWNED in rest:
        threading.Thread(target=_end_with_master, daemon=True).start()
    rejection = Worker(host, int(port)).run()
    if rejection is not None:
        sys.stderr.write(f"this worker is not needed: {rejection}\n")
        sys.stderr.flush()
    # Requests of an interrupted run are still under way in the sender's thread; do not wait for them.
    os._exit(0 if rejection is None else 1)


if __name__ == "__main__":
    main()
