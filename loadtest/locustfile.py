"""The four scenarios as Locust's users know them.

    locust -f loadtest/locustfile.py OverloadUser --host grpc://localhost:8001          # with the web page
    locust -f loadtest/locustfile.py OverloadUser --headless -u 20 -r 20 -t 1m --rate 5 --deadlines 100ms-400ms
    locust -f loadtest/locustfile.py SteadyUser BurstUser --processes 2 --class-picker

Without a class all four are mixed. `--help` lists their options ("hPLM: …"); the web page has them too.
"""

from __future__ import annotations

from locust import events

from loadtest.users.options import add_options
from loadtest.users.preparation import Preparation
from loadtest.users.scenarios import BurstUser, OverloadUser, SteadyUser, TraceUser

__all__ = ["BurstUser", "OverloadUser", "SteadyUser", "TraceUser"]

events.init_command_line_parser.add_listener(add_options)
Preparation().listen(events)
