"""What `bench.placement` plans for: AlpaServe's published setting, grids of bursty traffic, and a large fleet."""
