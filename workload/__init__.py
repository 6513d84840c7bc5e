"""Loads as pure classes: when requests arrive, how long they are, whose they are; and the language that says so.

Imports numpy only. Simulator, benches and load generators draw the same load from one seed.

`spec` reads what users write on the command line, such as `bursts:ratio=9,stay=2s`.

Usage:
    rng = np.random.default_rng(7)
    times_s = PoissonArrivals(rate_per_s=100).times_s(60, rng)
    lengths = NormalLengths(standard_deviation=20).draw(len(times_s), rng)
    tenants = ZipfTenants(1_000).draw(len(times_s), rng)
"""
