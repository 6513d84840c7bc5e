"""How evenly requests can be dealt while a gateway does not know yet that a server has died.

Such a server holds no requests, so by a bound on load it has room. What it loses would go to it again, and be lost,
unless the bound lets the others hold all there is. With a bound below 200 % of three to five servers that holds for
one at a time: where one is out already and another one dies, the gateway shares the bound among those that it takes for
healthy, and the others cannot hold all.
"""

from __future__ import annotations


def kept_balance(balance: int, num_servers: int) -> int:
    """Return the bound that a gateway keeps: that given, or what all servers but one can keep.

    Of two servers one would then hold all; for them the gateway has other means (`builder/fleet/clusters.py`).

    Args:
        balance: Open requests of a server over the mean of all, in percent; 0 for no bound.
        num_servers: All there are.
    """
    if not balance or num_servers <= 2:
        return balance
    return max(balance, -(-100 * num_servers // (num_servers - 1)))
