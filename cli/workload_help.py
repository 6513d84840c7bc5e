"""The language of workloads as help texts teach it; `workload.spec` reads it."""

from __future__ import annotations

LANGUAGE = """\b
--load       200/s                   requests per second
             2x                      times what the server can do
--arrivals   poisson  even           random, or all gaps alike
             gamma:cv=2              gaps with a coefficient of variation
             bursts:ratio=9,stay=2s  a busy state at 9 times the calm rate
--lengths    normal:deviation=20     tokens, around mean=20, from 3 to 100
             fixed:tokens=20
--tenants    uniform                 whose requests
             zipf:exponent=1.1       the k-th by 1 / k ** exponent
--deadlines  200ms  100ms-400ms
--duration   500ms  30s  5m  1h"""
SIMULATED = """\b
Simulations know besides:
--arrivals   trace:FILE              with --lengths, --tenants, --deadlines trace
--tenants    zipf:count=1000         uniform:count=1000
--deadlines  5x-20x                  times a full batch"""
