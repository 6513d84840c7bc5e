"""A long run of a supervised server: its load, its operator's work, its faults, and what grows meanwhile."""
