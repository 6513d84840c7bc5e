"""What users ask builders for: one model per request, filled by the command line and by the HTTP API alike."""
