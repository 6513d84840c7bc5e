"""Starting and stopping a real tritonserver without a container."""

from builder.serving.config import Ports, ServerConfig
from builder.serving.errors import PortInUseError, ServerNotReadyError, ServerStartError, TritonMissingError
from builder.serving.server import TritonServer, stop_signals_interrupt

__all__ = [
    "PortInUseError",
    "Ports",
    "ServerConfig",
    "ServerNotReadyError",
    "ServerStartError",
    "TritonMissingError",
    "TritonServer",
    "stop_signals_interrupt",
]
