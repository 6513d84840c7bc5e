"""The load generator: Locust's master hands shares of a schedule to Locust's workers, whose users play them.

Locust patches sockets and threads for gevent when it is imported. Here it must not: gRPC's bridge to gevent reads
answers with ten threads, so ten slow requests would hold up the reading of all others. Locust's own greenlets need no
patch, and the requests are asyncio tasks in a thread of their own. A Locust that this process starts is to patch them.
"""

import os

_SKIPS_PATCHES = "LOCUST_SKIP_MONKEY_PATCH"

_before = os.environ.get(_SKIPS_PATCHES)
os.environ[_SKIPS_PATCHES] = "1"
import locust  # noqa: E402, F401

if _before is None:
    del os.environ[_SKIPS_PATCHES]
else:
    os.environ[_SKIPS_PATCHES] = _before
