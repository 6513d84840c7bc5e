"""Random bad inputs for everything that reads what others wrote: the rule, the draws, the targets, the runner."""
