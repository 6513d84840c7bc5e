"""Starting and stopping a real tritonserver without a container."""

from builder.serving.config import Ports, ServerConfig
from builder.serving.errors import PortInUseError, ServerNotReadyError, ServerStartError, TritonMissingError
from builder.serving.server import TritonServer
from builder.serving.supervisor import Supervision, Supervisor
from builder.serving.trace_file import TracedSpan, overlap_line, overlaps, read_spans, write_trace
from builder.serving.tracing import traced

__all__ = [
    "PortInUseError",
    "Ports",
    "ServerConfig",
    "ServerNotReadyError",
    "ServerStartError",
    "Supervision",
    "Supervisor",
    "TracedSpan",
    "TritonMissingError",
    "TritonServer",
    "overlap_line",
    "overlaps",
    "read_spans",
    "traced",
    "write_trace",
]
