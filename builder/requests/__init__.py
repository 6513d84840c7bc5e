"""The requests that builders take: one model per request, filled by the command line and by the HTTP API alike."""
