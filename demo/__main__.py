"""`make demo`: from an empty folder to nine tenants' models answered by one real Triton server.

Finished steps are kept: an interrupted demo continues, and a second one takes seconds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from backends.errors import HplmError
from backends.home import HOME_VARIABLE, Home
from backends.lower.caller_check import AUTH_VARIABLE, Auth
from backends.registry.entries import HplmEntry
from backends.registry.registry import Registry
from builder.export.repository import render_repository
from builder.serving import ServerConfig, TritonServer
from builder.termination import stop_signals_interrupt
from cli.export import export_settings
from cli.failures import described
from cli.streams import take_any_text
from demo.building import DemoHome
from demo.laddered import Laddered
from demo.own_registry import require_own_registry
from demo.showing import Showing

BUILT = "demo.built"
"""A file in `run/`, there once all is built and answers as it should."""
_MIN_ACCURACY = 0.80
_MIN_ABOVE_MAJORITY = 0.20


def run(home: Annotated[Path, typer.Option(help="Where to build the demo.")] = Path("demo_home")) -> None:
    """Build, serve and ask nine customised models; leaves a home that `make serve` goes on with."""
    started = time.monotonic()
    require_own_registry()
    console = Console(width=None if sys.stdout.isatty() else 120)
    opened = Home(home.absolute())
    registry = Registry.open(opened, create=True)
    built = DemoHome(opened, registry, console)
    last_task = built.build_all_but_one()
    render_repository(opened.repository, export_settings())
    environment = {HOME_VARIABLE: str(opened.path), AUTH_VARIABLE: Auth.OFF.value}
    config = ServerConfig(repository=opened.repository, log_path=opened.run / "demo.log", environment=environment)
    with stop_signals_interrupt(), TritonServer(config) as server:
        console.print(f"\nTriton is ready: gRPC {server.grpc_url}, HTTP {server.http_url}", highlight=False)
        showing = Showing(opened, registry, built.tasks, server, console)
        showing.ask_everyone()
        showing.same_text_for_all()
        built.create_while_serving(last_task)
        showing.ask_new_hplm(last_task)
        Laddered(opened, registry, last_task, server.grpc_url, console).show()
        showing.quality()
        showing.hit_rates()
        showing.memory()
    console.print(f"\nDone in {time.monotonic() - started:.0f} s. Go on with: make serve", highlight=False)
    _check(showing.own())
    (opened.run / BUILT).touch()


def _check(entries: Sequence[HplmEntry]) -> None:
    """Fail if a model is less accurate than the demo promises."""
    for entry in entries:
        accuracy, majority = entry.metrics["test_accuracy"], entry.metrics["test_majority_share"]
        if accuracy < _MIN_ACCURACY or accuracy - majority < _MIN_ABOVE_MAJORITY:
            raise HplmError(f"{entry.id} answers {accuracy:.3f} of its held-out texts right (majority {majority:.3f})")


def main() -> None:
    take_any_text()
    try:
        typer.run(run)
    except KeyboardInterrupt:
        sys.exit("demo: interrupted; run it again to go on")
    except Exception as error:
        failure = described(error)
        if failure is None:
            raise
        sys.stderr.write(f"demo: {failure.message}\n")
        sys.exit(failure.exit_code)


if __name__ == "__main__":
    main()
