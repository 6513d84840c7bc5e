"""Several simulated servers behind a gateway."""
