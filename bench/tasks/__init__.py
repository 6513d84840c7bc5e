"""Real tasks and what is trained and compared on them."""
