"""Questions to the server around a load: is it up, does it know the hPLMs, how large were its batches."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from hplm_client import (
    ClientError,
    HplmClient,
    InvalidRequestError,
    NotFoundError,
    RequestTimeoutError,
    environment,
)
from hplm_client.address import Address, parse_addresses
from hplm_client.transports.grpc import channel_options
from loadtest.errors import MissingError
from loadtest.sender import Target

_TEXT = "Wait until the worker thread has finished."
_PAIR = ("Wait until the thread", "has finished.")
_BATCHING_MODEL = "hplm_upper"
_CONFIGURED_MODELS = ("hplm_lower", _BATCHING_MODEL)
_TIMEOUT_S = 5.0
_DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Asks as the SDK does over HTTP: without a proxy of the environment."""


def check_hplms(target: Target, hplms: Sequence[str], level: str | None = None) -> frozenset[str]:
    """Ask every hPLM once, for a level of its ladder; return those that read pairs.

    Raises:
        MissingError: The server does not know one of them.
        ClientError: It cannot be reached, or rejects a request.
    """
    with HplmClient(target.url, target.protocol).with_options(deadline_ms=None, timeout_s=None) as client:
        return pairs_among(client, hplms, target.url, level)


def pairs_among(client: HplmClient, hplms: Sequence[str], url: str, level: str | None = None) -> frozenset[str]:
    """Ask every hPLM once through a client that is open; errors are those of `check_hplms`.

    A server that answers nothing is found out by the first hPLM, and not waited for with every other.
    """
    _warm_up(client, hplms[0])
    outcomes = client.infer_many([(hplm, _TEXT) for hplm in hplms], on_error="return")
    failed = {hplm: one for hplm, one in zip(hplms, outcomes, strict=True) if isinstance(one, ClientError)}
    unknown = [hplm for hplm, error in failed.items() if isinstance(error, NotFoundError)]
    if unknown:
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise MissingError(f"the server at {url} has no hPLM {unknown[0]}{more}")
    for error in failed.values():
        if not isinstance(error, InvalidRequestError):
            raise error
    client.infer_many([(hplm, *_PAIR) for hplm in failed], on_error="raise")
    if level is not None:
        client.infer_many([(hplm, *_PAIR) if hplm in failed else (hplm, _TEXT) for hplm in hplms], level=level)
    return frozenset(failed)


def _warm_up(client: HplmClient, hplm: str) -> None:
    """Ask for the first time, which may take longer than an answer is waited for; then a second time.

    Raises:
        RequestTimeoutError: There was no answer to that one either.
    """
    for is_last in (False, True):
        try:
            client.infer(hplm, _TEXT)
        except RequestTimeoutError:
            if is_last:
                raise
        except ClientError:
            return  # it comes again where every hPLM is asked
        else:
            return


def batch_counts(target: Target) -> dict[int, int] | None:
    """Count the batches that Triton handed to the upper model, by their rows; None if the server does not say.

    Of several servers it is asked of the first.
    """
    address = _first_address(target)
    try:
        if address.protocol == "grpc":
            with tritonclient.grpc.InferenceServerClient(str(address), **_channel(address)) as client:
                content = client.get_inference_statistics(_BATCHING_MODEL, as_json=True, client_timeout=_TIMEOUT_S)
        else:
            content = _fetched(f"http://{address}/v2/models/{_BATCHING_MODEL}/stats")
    except (InferenceServerException, OSError, ValueError):
        return None
    return _counts(content)


def server_settings(target: Target) -> dict[str, str]:
    """Read the server's version and the settings of its models; what it does not say is left out."""
    address = _first_address(target)
    try:
        if address.protocol == "grpc":
            with tritonclient.grpc.InferenceServerClient(str(address), **_channel(address)) as client:
                server = client.get_server_metadata(as_json=True, client_timeout=_TIMEOUT_S)
                configs = [
                    client.get_model_config(name, as_json=True, client_timeout=_TIMEOUT_S)["config"]
                    for name in _CONFIGURED_MODELS
                ]
        else:
            server = _fetched(f"http://{address}/v2")
            configs = [_fetched(f"http://{address}/v2/models/{name}/config") for name in _CONFIGURED_MODELS]
    except (InferenceServerException, OSError, ValueError, KeyError):
        return {}
    settings = {"server": f"{server.get('name', '')} {server.get('version', '')}".strip()}
    for name, config in zip(_CONFIGURED_MODELS, configs, strict=True):
        short = name.removeprefix("hplm_")
        settings[f"{short} processes"] = str(sum(int(group.get("count", 1)) for group in config["instance_group"]))
        settings |= {f"{short} {key}": _parameter(value) for key, value in sorted(config["parameters"].items())}
    if settings.pop("upper stage", None) is not None:
        settings["upper stage_models"] = "true"
    if "upper slots" in settings:
        settings["upper slots"] = str(int(settings["upper slots"]) - 1)  # slot 0 stands for no adapter
    return settings


def _first_address(target: Target) -> Address:
    return parse_addresses(target.url, target.protocol)[0]


def _fetched(url: str) -> Any:
    with _DIRECTLY.open(url, timeout=_TIMEOUT_S) as reply:
        return json.load(reply)


def _parameter(value: Any) -> str:
    return str(value.get("string_value", value.get("stringValue", "")) if isinstance(value, dict) else value)


def batches_between(before: Mapping[int, int] | None, after: Mapping[int, int] | None) -> dict[int, int] | None:
    if before is None or after is None:
        return None
    grown = {size: count - before.get(size, 0) for size, count in sorted(after.items())}
    return {size: count for size, count in grown.items() if count > 0}


def _counts(content: Mapping[str, Any]) -> dict[int, int]:
    """Sum batches by their rows. Over gRPC numbers come as strings."""
    counts: dict[int, int] = {}
    for model in content.get("model_stats", ()):
        for batch in model.get("batch_stats", ()):
            size = int(batch.get("batch_size", 0))
            counts[size] = counts.get(size, 0) + int(batch["compute_input"].get("count", 0))
    return counts


def _channel(address: Address) -> dict[str, Any]:
    certificates = environment.ssl()
    encryption = certificates.for_grpc() if certificates is not None else {}
    return {"channel_args": channel_options(address, None), **encryption}
