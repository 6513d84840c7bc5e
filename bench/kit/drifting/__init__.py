"""Traffic that drifts, played on paced servers behind the gateway: for `bench.replace`."""
