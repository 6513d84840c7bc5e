"""How roots, domains and hPLMs are built: the values that requests and builders share."""
