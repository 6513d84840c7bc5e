"""The load generator: Locust's master hands shares of a schedule to Locust's workers, whose users play them.

Locust patches sockets and threads for gevent when it is imported. Here it must not: gRPC's bridge to gevent reads
answers with ten threads, so ten slow requests would hold up the reading of all others. Locust's own greenlets need no
patch, and the requests are asyncio tasks in a thread of their own.
"""

import os

os.environ["LOCUST_SKIP_MONKEY_PATCH"] = "1"
