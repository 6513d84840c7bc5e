"""A locustfile of one's own: what a shop asks, mornings and evenings alike.

    locust -f loadtest/examples/locustfile.py --headless --users 20 --spawn-rate 20 --run-time 30s

Each user begins two tasks a second on average, whether or not earlier ones have been answered. Locust's tables have a
row per hPLM; what the server rejected stands in rows of type "rejected" and is no failure. The variables SHOP_HPLM and
SHOP_OTHER_HPLM name other hPLMs.
"""

from __future__ import annotations

import os

from locust import task

from loadtest import HplmUser

HPLM = os.environ.get("SHOP_HPLM", "acme/area")
OTHER_HPLM = os.environ.get("SHOP_OTHER_HPLM", "acme/topic")


class Shopper(HplmUser):
    rate = 2.0
    arrivals = "poisson"

    @task(3)
    def classify_one(self) -> None:
        self.client.infer(HPLM, "It arrived broken and I want my money back.", deadline_ms=500)

    @task(1)
    def classify_twice(self) -> None:
        """Ask a second hPLM where the first one is in doubt."""
        answer = self.client.infer(HPLM, "Where is my parcel?", deadline_ms=500, name="first look")
        if answer is not None and getattr(answer, "score", 1.0) < 0.9:
            self.client.infer(OTHER_HPLM, "Where is my parcel?", deadline_ms=500, name="second look")
