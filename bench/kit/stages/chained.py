"""Two engines that are a stage each, in processes of their own: rows go to the second one, and its answers come back.

They do through a socket what `hplm_upper` and `hplm_stage_1` do through Triton. So the stages share no interpreter.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import NamedTuple

from backends.engine.open_request import Answered, RespondRequest
from backends.engine.passed import Passed
from backends.engine.service import HiddenRows
from backends.errors import HplmError
from backends.seal import Seal
from backends.stage_wire import encode_mates
from backends.wire import fold_rows

SubmitAll = Callable[[Sequence[tuple[HiddenRows, RespondRequest]]], None]


class Link(NamedTuple):
    """Both ends of a socket between the engines of two stages."""

    first: Connection
    second: Connection

    @classmethod
    def new(cls) -> Link:
        return cls(*get_context("spawn").Pipe())

    def close(self) -> None:
        """Close both ends here; each is open in its engine's process."""
        self.first.close()
        self.second.close()


class FirstStage:
    """Sends the rows that a stage passes on, and hands the answers to the requests' callbacks.

    Args:
        connection: Its end of the link.
        seal: Of the mates of rows.
    """

    def __init__(self, connection: Connection, seal: Seal) -> None:
        self._connection = connection
        self._seal = seal
        self._waiting: dict[int, RespondRequest] = {}
        self._numbers = count()
        self._sending = threading.Lock()
        threading.Thread(target=self._receive, name="answers", daemon=True).start()

    def after(self, rows: HiddenRows, respond: RespondRequest) -> RespondRequest:
        """Return the callback of rows in this stage: it sends them on, and `respond` gets the next one's answers."""

        def pass_on(answers: Answered) -> None:
            if isinstance(answers, HplmError):
                respond(answers)
                return
            passed = [answer for answer in answers if isinstance(answer, Passed)]
            states = fold_rows([row.states for row in passed])
            mates = encode_mates([row.mates for row in passed], rows.tickets, self._seal)
            number = next(self._numbers)
            self._waiting[number] = respond
            sent = pickle.dumps((number, tuple(rows._replace(hidden=states, mates=mates))), pickle.HIGHEST_PROTOCOL)
            try:
                with self._sending:
                    self._connection.send_bytes(sent)
            except OSError:
                self._lose_waiting()

        return pass_on

    def _receive(self) -> None:
        try:
            while True:
                number, answers = self._connection.recv()
                respond = self._waiting.pop(number, None)
                if respond is not None:
                    respond(HplmError(answers) if isinstance(answers, str) else answers)
        except (EOFError, OSError):
            pass  # the other process has ended
        finally:
            self._lose_waiting()

    def _lose_waiting(self) -> None:
        """Answer with an error what still waits for the second stage."""
        while self._waiting:
            try:
                _, respond = self._waiting.popitem()
            except KeyError:
                return  # the other thread has taken the last one
            respond(HplmError("the second stage has ended"))


class SecondStage:
    """Submits the rows that come, and sends back their answers or the messages of their errors.

    Args:
        connection: Its end of the link.
        submit_all: The engine's.
    """

    def __init__(self, connection: Connection, submit_all: SubmitAll) -> None:
        self._connection = connection
        self._submit_all = submit_all
        self._sending = threading.Lock()
        threading.Thread(target=self._receive, name="rows", daemon=True).start()

    def _receive(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                number, rows = pickle.loads(self._connection.recv_bytes())
                self._submit_all([(HiddenRows(*rows), self._answer_to(number))])

    def _answer_to(self, number: int) -> RespondRequest:
        def respond(answers: Answered) -> None:
            with self._sending:
                self._connection.send((number, str(answers) if isinstance(answers, HplmError) else answers))

        return respond
