"""What `bench.chaos` is made of: a plan of faults, their striking, what is watched meanwhile, and the judgement."""
