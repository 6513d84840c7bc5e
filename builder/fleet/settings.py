"""What a fleet is started with."""

from __future__ import annotations

from dataclasses import dataclass, field

from backends.errors import InvalidArgumentError
from builder.export.of_run import SettingsOfRun
from builder.serving.config import MAX_PORT, MEBIBYTE, READY_TIMEOUT_S
from builder.serving.restarts import MAX_RESTARTS
from builder.serving.tls import Tls

PORTS_APART = 10
"""Between the first ports of two servers."""
MAX_SERVERS = 64
HEALTH_ADDRESS = "127.0.0.1"
"""Where the fleet's own probes and orders are answered."""
_BESIDE_LOADING_S = 60.0
"""What a start takes besides: ports, first canaries, the gateway."""
_BESIDE_DRAINING_S = 60.0
"""What an end takes besides: until the gateway has noticed, and Triton's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """Servers of one home, and the gateway in front of them.

    Attributes:
        num_servers: How many.
        address: Where the gateway listens.
        http: Its port; None takes a free one.
        grpc: Its port; None takes a free one.
        health_port: Of the fleet itself; None takes a free one.
        first_port: Server k has the ports from `first_port` + 10 (k - 1) on, for HTTP, gRPC, metrics and health;
            with None they are free ones.
        balance: See `GatewaySettings`.
        tls: Encrypts the gateway's ports.
        drain_s: Time of a server to finish what it accepted.
        ready_timeout_s: Time of a server to load.
        of_run: What the servers have otherwise than the export.
        gpus: What each server sees as its GPUs, in CUDA's words; none leaves all to all.
        own_cores: Whether each server computes on cores of its own, where there are enough.
    """

    num_servers: int = 2
    address: str = "127.0.0.1"
    http: int | None = 8000
    grpc: int | None = 8001
    health_port: int | None = 8003
    first_port: int | None = 8010
    balance: int = 125
    tls: Tls | None = None
    drain_s: float = 30.0
    ready_timeout_s: float = READY_TIMEOUT_S
    max_restarts: int = MAX_RESTARTS
    max_log_bytes: int = 64 * MEBIBYTE
    log_verbose: int = 0
    of_run: SettingsOfRun = field(default=SettingsOfRun())
    gpus: tuple[str, ...] = field(default=())
    own_cores: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.num_servers <= MAX_SERVERS:
            raise InvalidArgumentError(f"{self.num_servers} servers cannot be; give 1 to {MAX_SERVERS}")
        if self.gpus and len(self.gpus) != self.num_servers:
            raise InvalidArgumentError(f"{len(self.gpus)} GPUs for {self.num_servers} servers; give one for each")
        if self.first_port is not None:
            self._check_ports(self.first_port)

    def _check_ports(self, first: int) -> None:
        last = first + PORTS_APART * self.num_servers - 1
        if not 0 < first <= last <= MAX_PORT:
            raise InvalidArgumentError(
                f"the servers' ports, from --first-port {first} to {last}, are not between 1 and {MAX_PORT}"
            )
        for port in (self.http, self.grpc, self.health_port):
            if port is not None and first <= port <= last:
                raise InvalidArgumentError(
                    f"port {port} is one of the servers' own, {first} to {last}; give another, or another --first-port"
                )

    @property
    def start_limit_s(self) -> float:
        """The longest time until a server that is started is asked by the gateway; it fails by itself before that."""
        return self.ready_timeout_s + _BESIDE_LOADING_S

    @property
    def order_limit_s(self) -> float:
        """The longest time until a server is drained, ended and started again."""
        return self.drain_s + _BESIDE_DRAINING_S + self.start_limit_s

    @property
    def names(self) -> list[str]:
        return [f"server-{number}" for number in range(1, self.num_servers + 1)]
