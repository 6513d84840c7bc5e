"""A base home behind the real Triton, as a bench wants it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from backends.deadline_batcher import FILE_NAME
from backends.errors import InvalidArgumentError
from backends.home import Home
from backends.scheduling.cost_model import CostModel
from builder.export.model_names import LOWER
from builder.export.repository import render_repository
from builder.export.settings import ExportSettings
from builder.serving import ServerConfig, TritonServer


@dataclass(frozen=True)
class Serving:
    """One way to serve; `name`, or a path, keeps the repositories of several servers on one home apart."""

    name: str = "repository"
    lower_instances: int = 1
    lower: Mapping[str, str] = field(default_factory=lambda: {"missing": "fallback"})
    """Nothing is computed by default for fragments that no table holds: most benches are about the upper model."""
    upper: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    device: Literal["cpu", "gpu"] = "cpu"
    code: Path | None = None
    mode: Literal["engine", "triton"] = "engine"
    takes_plugin: bool = True
    cost_model: CostModel | None = None
    stage_models: bool = False
    prepare: Callable[[Path], None] = lambda _: None
    """Changes the rendered repository."""

    def config(self, home: Home) -> ServerConfig:
        """Render the repository, and say how to start a server on it."""
        repository = home.path / self.name
        settings = ExportSettings(
            lower_instances=self.lower_instances,
            lower_parameters=self.lower,
            upper_parameters=self.upper,
            device=self.device,
            mode=self.mode,
            takes_plugin=self.takes_plugin,
            cost_model=self.cost_model,
            stage_models=self.stage_models,
        )
        render_repository(repository, settings, self.code)
        if self.takes_plugin and not (repository / LOWER / "1" / FILE_NAME).exists():
            raise InvalidArgumentError(
                "what users get is measured with the batching plugin, which needs a C++ compiler"
            )
        self.prepare(repository)
        environment = {"HPLM_HOME": str(home.path), **self.environment}
        return ServerConfig(repository=repository, environment=environment)


@contextmanager
def served(home: Home, serving: Serving) -> Iterator[TritonServer]:
    with TritonServer(serving.config(home)) as server:
        yield server


@contextmanager
def all_served(home: Home, servings: Mapping[str, Serving]) -> Iterator[dict[str, TritonServer]]:
    """Servers started side by side, by the names of their servings."""
    with ExitStack() as stack:
        servers = {name: TritonServer(serving.config(home)) for name, serving in servings.items()}
        for server in servers.values():
            stack.callback(server.stop)
            server.start()
        for server in servers.values():
            server.wait_ready()
        yield servers
