"""Settings of a Debezium connector, asked of Kafka Connect: some lose changes without a word.

The REST interface: https://docs.confluent.io/platform/current/connect/references/restapi.html
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from mview.config import ChangesSettings
from mview.errors import AwayError, ConfigError, several
from mview.secrets import reveal
from mview_connectors.formats.messages import OPTION_PREFIX
from mview_connectors.network import is_local

#: Seconds for an answer.
_PATIENCE = 10

#: Properties that change how values are written, with Debezium's defaults.
_MODES = {
    "time.precision.mode": "adaptive",
    "decimal.handling.mode": "precise",
    "binary.handling.mode": "bytes",
    "unavailable.value.placeholder": "__debezium_unavailable_value",
}

#: Properties by which a connector passes over what it cannot read, and what they must be.
_STRICT = {
    "errors.tolerance": "none",
    "event.processing.failure.handling.mode": "fail",
    "event.deserialization.failure.handling.mode": "fail",
    "inconsistent.schema.handling.mode": "fail",
}

#: Properties that write other values than the database has.
_CHANGED = ("column.mask.", "column.truncate.")

#: JsonConverter's property; without a converter of its own, a connector has that of its worker.
_REPLACED, _JSON = "value.converter.replace.null.with.default", "JsonConverter"

#: How long the connectors of binary logs let a server be silent, Debezium's default, and seconds
#: between two heartbeats that are few.
_BINLOG, _KEEP_ALIVE = ("MySqlConnector", "MariaDbConnector"), "connect.keep.alive.interval.ms"
_KEEP_ALIVE_MS, _SELDOM_S = 60_000, 10

#: Transforms that flatten messages, or drop some.
_TRANSFORMS = ("ExtractNewRecordState", "Filter")


def check_connector(settings: ChangesSettings) -> None:
    """Make sure that the connector of the heartbeat topic runs and sends all.

    Args:
        settings: a section with `connect`.

    Raises:
        ConfigError: there is no such connector, or its settings lose something; all are told.
        AwayError: Kafka Connect does not answer.
    """
    there = _ask(settings)
    name = _named(settings, there)
    if name is None:
        raise ConfigError(
            f"Kafka Connect has no connector whose heartbeats are in {settings.heartbeat_topic!r}",
            where=f"{settings.section}.connect",
            got=", ".join(sorted(there)) or "no connectors",
            hint="heartbeat_topic is __debezium-heartbeat.<topic.prefix of the connector>",
        )
    faults = [
        ConfigError(
            f"connector {name} {what}", where=f"{settings.section}.connect", got=got, hint=hint
        )
        for what, got, hint in _faults(settings, name, there[name])
    ]
    if faults:
        raise several(faults)


def connector_caution(settings: ChangesSettings) -> str | None:
    """A warning of heartbeats that come seldom where nothing changes.

    Those of MySQL and MariaDB wait for a sign of the server. The client of the binary log asks for
    one every 0.8 of what is set.

    Args:
        settings: a section with `connect`; one that does not answer now is not warned of.
    """
    with suppress(AwayError, ValueError):
        there = _ask(settings)
        if (name := _named(settings, there)) is not None:
            config = there[name]["info"]["config"]
            seconds = 0.8 * int(config.get(_KEEP_ALIVE, _KEEP_ALIVE_MS)) / 1000
            if config.get("connector.class", "").endswith(_BINLOG) and seconds > _SELDOM_S:
                return (
                    f"WARNING: {settings.section}.connect: where nothing changes, connector {name} "
                    f"sends a heartbeat every {seconds:.0f} s only, and each load waits for some. "
                    f"Set {_KEEP_ALIVE}=5000 in the connector."
                )
    return None


def _named(settings: ChangesSettings, there: Mapping[str, Any]) -> str | None:
    """The connector of the heartbeat topic."""
    by_beats = {_beats_of(connector["info"]["config"]): name for name, connector in there.items()}
    return by_beats.get(settings.heartbeat_topic or "")


def _faults(
    settings: ChangesSettings, name: str, connector: Mapping[str, Any]
) -> Iterator[tuple[str, str, str]]:
    """What is wrong: in words, what was found, and what to do."""
    config, status = connector["info"]["config"], connector["status"]
    for part in (status["connector"], *status["tasks"]):
        if part["state"] != "RUNNING":
            again = f"restart it: POST {settings.connect}/connectors/{name}/restart"
            yield "does not run", f"{part['state']} {part.get('trace', '')[:300]}".strip(), again
            break
    skipped = config.get("skipped.operations", "t")
    if skipped != "none":
        yield (
            "leaves out changes: after a TRUNCATE, say, views would keep the rows",
            f"skipped.operations={skipped}",
            "set skipped.operations=none in the connector",
        )
    for property_, wanted in _STRICT.items():
        if (got := config.get(property_, wanted)) != wanted:
            yield (
                "passes over changes that it cannot send",
                f"{property_}={got}",
                f"set {property_}={wanted} in the connector",
            )
    for property_ in sorted(config):
        if property_.startswith(_CHANGED):
            yield (
                "sends other values than the database has",
                property_,
                f"remove {property_} from the connector",
            )
    for transform in filter(None, config.get("transforms", "").split(",")):
        kind = config.get(f"transforms.{transform.strip()}.type", "")
        if kind.split("$")[0].endswith(_TRANSFORMS):
            yield (
                "has a transform that flattens or drops messages",
                f"{transform.strip()}: {kind}",
                "remove the transform from the connector",
            )
    converted = config.get(_REPLACED, "true" if _JSON in config.get("value.converter", "") else "")
    if converted == "true" and OPTION_PREFIX + "replace.null.with.default" in settings.options:
        yield (
            "sends a column's default in place of NULL, otherwise than is stated",
            f"{_REPLACED}={config.get(_REPLACED, 'true, its default')}",
            f"set {_REPLACED}=false in the connector",
        )
    for mode, default in _MODES.items():
        got, stated = config.get(mode, default), settings.options.get(OPTION_PREFIX + mode)
        placeholder = mode.startswith("unavailable") and got != default
        if got != stated and (stated is not None or placeholder):
            yield (
                "writes values otherwise than is stated",
                f"{mode}={got}; {OPTION_PREFIX}{mode} is {stated or 'not stated'}",
                f"set {OPTION_PREFIX}{mode}: {got} under {settings.section}.options",
            )


def _beats_of(config: Mapping[str, str]) -> str:
    prefix = config.get("topic.heartbeat.prefix", "__debezium-heartbeat")
    return f"{prefix}.{config.get('topic.prefix', '')}"


def _ask(settings: ChangesSettings) -> dict[str, Any]:
    """All connectors by name, with their settings and states."""
    assert settings.connect is not None
    place = f"{settings.section}.connect"
    url = reveal(settings.connect, place).rstrip("/")
    # A proxy of the environment must not be asked for this machine.
    direct = [urllib.request.ProxyHandler({})] if is_local(urlsplit(url).hostname) else []
    opener = urllib.request.build_opener(*direct)
    try:
        with opener.open(f"{url}/connectors?expand=info&expand=status", timeout=_PATIENCE) as said:
            answer = json.loads(said.read())
        connectors = {
            name: connector
            for name, connector in answer.items()
            if type(connector["info"]["config"]) is dict
            and connector["status"]["connector"]["state"]
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise AwayError(
            f"Kafka Connect at {settings.connect} does not answer as it should",
            where=place,
            got=f"{type(error).__name__}: {error}"[:300],
            safe="nothing was read",
            hint="check the URL and that it runs; or take `connect` away: nothing is asked then",
        ) from None
    return connectors
