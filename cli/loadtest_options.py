"""The options that all load tests share, in groups, and what they mean."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from backends.errors import InvalidArgumentError
from cli.options import DEFAULT_HOME, HomeOption, JsonOption
from cli.session import open_home

if TYPE_CHECKING:
    from loadtest.scenarios import Content
    from loadtest.sender import Target
    from loadtest.workers import Workers

DurationOption = Annotated[
    str | None,
    typer.Option(help="How long: 30s, 5m, 1h. By default 60s for steady, 30s for overload; others end by themselves."),
]
TenantsOption = Annotated[str, typer.Option(help="Who asks: uniform, or zipf:exponent=1.1 (the first hPLM most).")]
EveryOption = Annotated[str, typer.Option("--every", "--every-s", help="Time between requests: 1.2s, 500ms.")]


@dataclass(frozen=True)
class TargetOptions:
    url: Annotated[
        str, typer.Option(envvar="HPLM_URL", help="Where the server is: host:port, grpc://… or http://….")
    ] = "localhost"
    protocol: Annotated[
        Literal["grpc", "http"] | None, typer.Option(help="How to ask; grpc if neither this nor the URL says it.")
    ] = None
    timeout: Annotated[
        str | None,
        typer.Option(
            "--timeout", "--timeout-s", help="Stop waiting for an answer: 5s. \\[default: its deadline + 1s, or 30s]"
        ),
    ] = None

    def target(self) -> Target:
        from loadtest.sender import Target
        from workload.forms import read_duration_s

        timeout_s = None if self.timeout is None else read_duration_s(self.timeout, "--timeout")
        return Target(self.url, self.protocol, timeout_s)


@dataclass(frozen=True)
class ContentOptions:
    home: HomeOption = DEFAULT_HOME
    hplm: Annotated[
        list[str] | None, typer.Option(help="Ask this hPLM; may be repeated. \\[default: all of the home]")
    ] = None
    texts: Annotated[
        Path | None, typer.Option(help="Texts to ask about, one per line. \\[default: common words in random order]")
    ] = None
    labelled: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID=FILE",
            help='Texts of one hPLM with the right labels, {"text": …, "label": …} per line, so that the report says '
            "how many answers are right; may be repeated. Without --hplm only these hPLMs are asked.",
        ),
    ] = None
    level: Annotated[
        str | None,
        typer.Option(
            help="The level to ask for: auto, early, full, students, or students-1 and so on. "
            "\\[default: as far up as a text needs]"
        ),
    ] = None
    lengths: Annotated[
        str | None,
        typer.Option(
            help="Tokens: normal:deviation=20 (around mean=20, from 3 to 100), or fixed:tokens=20. "
            "\\[default: normal:deviation=20, or as the lines of --texts are]"
        ),
    ] = None
    deadlines: Annotated[
        str | None,
        typer.Option(
            "--deadlines",
            "--deadline-ms",
            help="How long an answer is worth waiting for: 200ms, or 100ms-400ms for any in between. "
            "\\[default: no deadline, or those of a trace]",
        ),
    ] = None

    def content(self) -> Content:
        """The content of a load; which hPLMs read pairs is not known yet."""
        from loadtest.labelled import LabelledTexts, parse_labelled
        from loadtest.scenarios import Content
        from loadtest.texts import FileTexts, Texts, WordTexts
        from workload.lengths import EmpiricalLengths, NormalLengths
        from workload.spec import TRACE, parse_deadlines, parse_lengths

        labelled = parse_labelled(self.labelled or ())
        hplms = self.hplm or list(labelled) or [entry.id for entry in open_home(self.home)[1].hplms()]
        if not hplms:
            raise InvalidArgumentError(f"{self.home} has no hPLM; 'hplm create' makes one")
        texts: Texts = WordTexts()
        if self.lengths == TRACE:
            raise InvalidArgumentError("load tests take a trace's lengths wherever it has them; leave --lengths out")
        lengths = None if self.lengths is None else parse_lengths(self.lengths)
        if self.texts is not None:
            texts = FileTexts.read(self.texts)
            lengths = lengths or EmpiricalLengths(texts.lengths, longest=int(texts.lengths.max()))
        if self.deadlines == TRACE:
            raise InvalidArgumentError(
                "load tests take a trace's deadlines wherever it has them; leave --deadlines out"
            )
        deadlines = None if self.deadlines is None else parse_deadlines(self.deadlines)
        return Content(
            tuple(dict.fromkeys(hplms)),
            texts,
            lengths or NormalLengths(20),
            None if deadlines is None else deadlines.after(full_batch_ms=None),
            labelled=LabelledTexts.read(labelled) if labelled else None,
            level=self.level,
        )


@dataclass(frozen=True)
class RunOptions:
    out: Annotated[
        Path | None, typer.Option(help="A new folder for the results. \\[default: loadtest-SCENARIO-TIME]")
    ] = None
    seed: Annotated[int, typer.Option(min=0, help="The same seed and options draw the same load.")] = 0
    workers: Annotated[int, typer.Option(min=1, help="Processes that send.")] = 1
    master: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            help="Wait on this port for --workers processes of other machines: hplm loadtest worker HOST:PORT. "
            "The port checks no identity.",
        ),
    ] = None
    max_lateness: Annotated[
        str,
        typer.Option(
            "--max-lateness",
            "--max-lateness-ms",
            help="The run counts as not valid if one request in 100 is sent later than this.",
        ),
    ] = "20ms"
    as_json: JsonOption = False

    def folder(self, scenario: str) -> Path:
        return self.out or Path(f"loadtest-{scenario}-{datetime.datetime.now():%Y%m%d-%H%M%S}")

    def max_lateness_ms(self) -> float:
        from workload.forms import read_duration_s

        return 1000 * read_duration_s(self.max_lateness, "--max-lateness", bare_unit="ms")

    def senders(self) -> Workers:
        from loadtest.workers import Workers

        return Workers(self.workers, self.master)


def duration_of(text: str | None) -> float | None:
    """Seconds of --duration; None if it was not given."""
    from workload.forms import read_duration_s

    return None if text is None else read_duration_s(text, "--duration")


def every_of(text: str) -> float:
    from workload.forms import read_duration_s

    return read_duration_s(text, "--every")
