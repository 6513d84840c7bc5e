"""The options of builds that map over chunks: the number of processes, and a cluster of machines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from backends.errors import InvalidArgumentError

if TYPE_CHECKING:
    from builder.executors.mapping import ParallelMap

_CLUSTER = (
    "HOST:PORT of its head, or auto for the one that this machine belongs to. Every node needs this release with Ray "
    "(pip install 'hplm\\[ray]') and the home at the same path, on a shared file system. What a lost node had begun, "
    "another one does."
)
RayOption = Annotated[
    str | None,
    typer.Option(
        "--ray", metavar="ADDRESS", help=f"The Ray cluster that counts fragments and computes the table: {_CLUSTER}"
    ),
]
TrialsRayOption = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help="The Ray cluster that the trials of --search run on, side by side, each with its share of the CPUs or, on "
        f"cuda, a GPU: {_CLUSTER}",
    ),
]


@dataclass(frozen=True)
class MapOptions:
    processes: Annotated[
        int | None,
        typer.Option(
            min=1,
            show_default=False,
            help="Processes that count fragments and compute the table. One uses all cores through threads; more pay "
            "on machines with many cores, and each takes the memory of the lower layers. With --ray: tasks at once. "
            "\\[default: 1, with --ray the cluster's CPUs]",
        ),
    ] = None
    ray: RayOption = None

    @contextmanager
    def map(self) -> Iterator[ParallelMap]:
        """The requested map; a cluster is left at the end."""
        from builder.executors.cluster import cluster_map_at
        from builder.executors.processes import local_map

        if self.ray is None:
            yield local_map(self.processes or 1)
        else:
            with cluster_map_at(self.ray, self.processes) as over_nodes:
                yield over_nodes


@contextmanager
def trial_map(ray: str | None, search: int, device: str) -> Iterator[ParallelMap]:
    """The map for the trials of a search: here, or on a cluster that is left at the end.

    Raises:
        InvalidArgumentError: The device is a GPU, and this machine or the cluster has none.
    """
    from builder.construct.training.device import training_device
    from builder.executors.cluster import cluster_map_at, ray_module, require_gpu
    from builder.executors.mapping import map_here

    if ray is None:
        yield map_here
        return
    if search < 2:
        raise InvalidArgumentError("--ray runs the trials of a search side by side; it needs --search 2 or more")
    on_gpu = training_device(device).type == "cuda"
    with cluster_map_at(ray, None) as over_nodes:
        if on_gpu:
            require_gpu(ray_module())
        yield over_nodes
