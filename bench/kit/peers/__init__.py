"""Dedicated models in the runtimes that one can install, each as fast as it goes on this machine."""
