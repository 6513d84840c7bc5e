"""The manager's HTTP face: routes, what they answer with, and how errors look."""
