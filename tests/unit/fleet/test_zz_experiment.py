import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from test_gateway import before


def test_x(tmp_path):
    with before(2, tmp_path) as asked:
        asked.servers[1].behaviour = "break"
        asked.servers[0].behaviour = "hold"
        with ThreadPoolExecutor(60) as pool:
            futures = []
            for n in range(40):
                futures.append(pool.submit(asked.http, f"tenant-{n}/x"))
                time.sleep(0.01)
            time.sleep(0.5)
            asked.servers[0].released.set()
            found = Counter(f.result()[0] for f in futures)
        print("STATUSES", found, asked.asked())
        assert False
