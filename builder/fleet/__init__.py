"""Several servers on one machine behind a gateway, and the same gateway's configuration for other machines."""
