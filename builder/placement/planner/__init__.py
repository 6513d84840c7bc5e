"""The search for a placement: which stacks stand on which devices, and in which shape."""
