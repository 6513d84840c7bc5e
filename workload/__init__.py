"""Load as pure classes: when requests arrive, how long they are, whose they are; and traces that say all three.

Nothing here imports more than numpy, so that simulator, benches and load generators draw the same load from one seed.

Usage:
    chance = np.random.default_rng(7)
    times_s = PoissonArrivals(rate_per_s=100).times_s(60, chance)
    lengths = NormalLengths(standard_deviation=20).draw(len(times_s), chance)
    tenants = ZipfTenants(1_000).draw(len(times_s), chance)
"""
