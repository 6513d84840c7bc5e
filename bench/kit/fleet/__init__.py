"""Several servers behind a gateway: how they are started, asked, broken and judged."""
