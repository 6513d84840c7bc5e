"""Executors of independent pieces of work: in this process, in processes beside it, or on a Ray cluster."""
