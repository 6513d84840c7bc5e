"""What is measured of a root on this machine."""
