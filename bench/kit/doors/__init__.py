"""What callers without a right to it try at a server's doors: tickets, endpoints, tokens."""
