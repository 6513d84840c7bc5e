"""Where independent pieces of work run: in this process, in processes beside it, or on a Ray cluster."""
