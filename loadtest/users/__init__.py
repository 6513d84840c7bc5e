"""Locust's users for locustfiles: `locust -f loadtest/locustfile.py`, or one's own on top of `HplmUser`.

They run in Locust's greenlets, with its patches for gevent. `hplm loadtest` does not use them: `loadtest.generator`
plays exact schedules without patches.
"""
