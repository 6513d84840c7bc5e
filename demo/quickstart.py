"""`make quickstart`: a home from the prebuilt parts, served in the foreground within a minute.

Nothing is trained: embeddings and upper layers come from the package of the pretrained model, the rest of the root and
the hPLMs from the repository, and the table is computed here. A second run serves what is there.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated

import psutil
import typer
from rich.console import Console

from backends.errors import ConflictError, InvalidArgumentError
from backends.home import HOME_VARIABLE, Home
from backends.lower.caller_check import AUTH_VARIABLE, Auth
from backends.registry.registry import Registry
from backends.storage import read_json, write_json
from builder.construct.hplm.hplms import building_hplm, publish_artifact
from builder.construct.root.roots import add_root
from builder.export.of_run import SettingsOfRun
from builder.export.repository import render_repository
from builder.progress import progress_bars
from builder.requests.domains import GENERAL_DOMAIN
from builder.serving import PortInUseError, ServerConfig, Supervision, TritonServer
from builder.serving.config import MAX_PORT
from builder.serving.own_log import own_log
from builder.serving.ports import ClaimedPorts
from builder.settings.domain import PlotSettings
from cli.exit_codes import INTERRUPTED
from cli.export import export_settings
from cli.failures import described
from cli.listening import auth_of_run, require_code, who_may_ask
from cli.server import serve_until_stopped
from cli.streams import take_any_text
from demo.own_registry import require_own_registry
from demo.prebuilt import PREBUILT, Prebuilt
from demo.root import DISTILLED, ROOT, root_request
from demo.tasks import write_lines

EXAMPLES = {
    "acme/area": ("Return True if the message has been stored in the folder.", "mail"),
    "initech/system": ("Load the column types of a PostgreSQL table.", "postgresql"),
}
"""A text for some hPLMs, and the label of its answer."""
_MARK = "quickstart.json"
_OTHER_PORTS = "'make quickstart PORT=9000' takes 9000 to 9003"
_DOCUMENTS = Path(__file__).parents[1] / "docs"
# All uni-grams, and few longer n-grams: of the documents' tri-grams, 10,000 hold only 5 % of those in the demo's texts.
_TABLE = PlotSettings(max_fragments=1_000, max_bigrams=1_000)


class QuickstartHome:
    """A home that is assembled step by step; the mark in its folder tells it from other homes."""

    def __init__(self, home: Home, prebuilt: Prebuilt, console: Console) -> None:
        self._home = home
        self._prebuilt = prebuilt
        self._console = console

    def is_assembled(self) -> bool:
        """Say whether everything is there, whatever its owner has changed since.

        Raises:
            ConflictError: The folder is something else, or was begun with other prebuilt parts.
        """
        folder, mark = self._home.path, self._home.path / _MARK
        if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
            return False
        if not mark.exists():
            raise ConflictError(
                f"{folder} exists and was not made by 'make quickstart'; nothing was changed, and "
                "'make quickstart HOME_FOLDER=…' takes another folder"
            )
        content = read_json(mark)
        if not content["assembled"] and content["prebuilt"] != self._prebuilt.checksum:
            raise ConflictError(f"{folder} was begun with other prebuilt parts; remove it and start again")
        return bool(content["assembled"])

    def assemble(self, distilled: Path = DISTILLED) -> None:
        """Make what is missing; the parts are compared with their checksums first."""
        self._prebuilt.check(distilled)
        self._mark(assembled=False)
        registry = Registry.open(self._home, create=True)
        if not registry.has_root(ROOT):
            request = root_request(self._corpus(), distilled, _TABLE)
            with progress_bars(f"root {ROOT}", self._console) as report:
                add_root(self._home, registry, request, report)
        domain = registry.find_domain(ROOT, GENERAL_DOMAIN)
        for hplm, figures in self._prebuilt.hplms.items():
            with building_hplm(self._home, hplm):
                if not registry.has_hplm(hplm):
                    artifact, trained = self._prebuilt.artifact(hplm), self._prebuilt.trained_texts(hplm)
                    publish_artifact(self._home, registry, artifact, domain, figures, made_with=trained)
        render_repository(self._home.repository, export_settings())
        self._mark(assembled=True)

    def _corpus(self) -> Path:
        """Write the corpus of the root's table: this repository's documents.

        Fragments of other texts are computed when they are first asked for.
        """
        path = self._home.path / "texts" / "general.txt"
        path.parent.mkdir(exist_ok=True)
        write_lines(path, document_lines())
        return path

    def _mark(self, assembled: bool) -> None:
        self._home.path.mkdir(parents=True, exist_ok=True)
        write_json(self._home.path / _MARK, {"prebuilt": self._prebuilt.checksum, "assembled": assembled})


def document_lines() -> Iterator[str]:
    for document in sorted(_DOCUMENTS.rglob("*.md")):
        yield from (line.strip() for line in document.read_text(encoding="utf-8").splitlines() if line.strip())


def served_hplms(home: Home) -> list[str]:
    """List what a home serves: the prebuilt hPLMs, and what its owner has made or deleted since."""
    with closing(Registry.open(home)) as registry:
        return [entry.id for entry in registry.hplms()]


def server_ports(port: int) -> list[int | None]:
    """Return the ports for HTTP, gRPC, metrics and probes; None takes a free one."""
    ports = range(port, port + 4)
    if port < 0 or ports[-1] > MAX_PORT:
        raise InvalidArgumentError(f"port {port} and the next three cannot be; {_OTHER_PORTS}")
    return [each if port else None for each in ports]


def server_config(home: Home, ports: Sequence[int | None], log_path: Path, of_run: SettingsOfRun) -> ServerConfig:
    http, grpc, metrics, _ = ports
    return ServerConfig(
        repository=home.repository,
        log_path=log_path,
        http_port=http,
        grpc_port=grpc,
        metrics_port=metrics,
        environment={HOME_VARIABLE: str(home.path), **of_run.environment},
    )


def run(
    home: Annotated[Path, typer.Option(help="Where to assemble the home.")] = Path("quickstart_home"),
    port: Annotated[int, typer.Option(help="HTTP port; the next three are the others. 0 takes free ones.")] = 8000,
    auth: Annotated[
        Auth | None, typer.Option(envvar=AUTH_VARIABLE, help="off, or tokens of hplm token; without it the export's.")
    ] = None,
) -> None:
    """Assemble a home from prebuilt parts and serve it until Ctrl-C."""
    started = psutil.Process().create_time()  # importing counts too
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    opened = Home(home.absolute())
    ports = server_ports(port)
    require_own_registry()
    _require_free_ports(ports)
    quickstart = QuickstartHome(opened, Prebuilt.read(PREBUILT), console)
    if quickstart.is_assembled():
        console.print(f"{home} is there; serving it")
    else:
        console.print(f"Assembling {home} from prebuilt parts; later starts skip this …")
        _assemble(quickstart)
    require_code(opened.repository)
    console.print("Starting Triton …")
    of_run = SettingsOfRun(auth=auth and auth.value)
    with closing(Registry.open(opened)) as registry:
        callers = who_may_ask(auth_of_run(opened.repository, auth), registry)

    def say_what_to_try(server: TritonServer) -> None:
        typer.echo(callers, err=True)
        console.print(
            what_to_try(server, home, served_hplms(opened), time.time() - started), soft_wrap=True, markup=False
        )

    with own_log(opened.run) as log_path:
        config = server_config(opened, ports, log_path, of_run)
        serve_until_stopped(config, of_run, say_what_to_try, supervision=Supervision(health_port=ports[-1]))


def _require_free_ports(ports: Sequence[int | None]) -> None:
    """Look before the work, not after it; the server looks again."""
    try:
        ClaimedPorts.take([("127.0.0.1", each) for each in ports]).release()
    except PortInUseError as error:
        raise PortInUseError(f"{str(error).partition(';')[0]}; {_OTHER_PORTS}") from error


def _assemble(quickstart: QuickstartHome) -> None:
    try:
        quickstart.assemble()
    except KeyboardInterrupt:
        sys.stderr.write("quickstart: interrupted; run it again to go on\n")
        raise typer.Exit(INTERRUPTED) from None


def what_to_try(server: TritonServer, home: Path, hplms: Sequence[str], seconds: float) -> str:
    """Tell a newcomer what to type next, and what comes back."""
    tenants = {hplm.partition("/")[0] for hplm in hplms}
    shown = shlex.quote(str(home.absolute()))
    there = {hplm: example for hplm, example in EXAMPLES.items() if hplm in hplms}
    examples = [
        f"  curl -s {server.http_url}/v2/models/hplm/generate -d '{json.dumps({'MODEL': hplm, 'TEXT': text})}'\n"
        f'      the answer\'s RESULT has "label": "{label}"'
        for hplm, (text, label) in there.items()
    ]
    first = [f"  .venv/bin/hplm infer {hplm} {shlex.quote(text)}" for hplm, (text, _) in there.items()][:1]
    lines = [
        f"\n{len(hplms)} models of {len(tenants)} tenants answer, {seconds:.0f} s after the start. "
        "Ask them from another terminal:\n",
        *examples,
        "\nThe same with the command line, and what else is served:\n",
        f"  export HPLM_URL=grpc://{server.grpc_url} HPLM_HOME={shown}",
        *first,
        "  .venv/bin/hplm list",
        f"\nCtrl-C stops the server; 'make serve HOME_FOLDER={shown} PORT={server.ports.http}' starts it again.",
    ]
    return "\n".join(lines)


def main() -> None:
    take_any_text()
    try:
        typer.run(run)
    except Exception as error:
        failure = described(error)
        if failure is None:
            raise
        sys.stderr.write(f"quickstart: {failure.message}\n")
        sys.exit(failure.exit_code)


if __name__ == "__main__":
    main()
