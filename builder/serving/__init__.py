"""Starting and stopping a real tritonserver without a container."""

from builder.serving.config import Ports, ServerConfig
from builder.serving.errors import PortInUseError, ServerNotReadyError, ServerStartError, TritonMissingError
from builder.serving.server import TritonServer, sigterm_interrupts

__all__ = [
    "PortInUseError",
    "Ports",
    "ServerConfig",
    "ServerNotReadyError",
    "ServerStartError",
    "TritonMissingError",
    "TritonServer",
    "sigterm_interrupts",
]
