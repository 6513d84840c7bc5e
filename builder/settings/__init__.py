"""Settings of building roots, domains and hPLMs: the values that requests and builders share."""
