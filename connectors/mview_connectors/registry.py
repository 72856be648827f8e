"""A schema registry, which has the schemas of messages that carry only an id.

Asked over the interface that Confluent's registry has, and Apicurio (`/apis/ccompat/v7`), Karapace
and Redpanda have, too: https://docs.confluent.io/platform/current/schema-registry/develop/api.html

A schema of an id never changes, so each is asked for once per process.
"""

from __future__ import annotations

import base64
import http.client
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit

import orjson

from mview.errors import AwayError, ConfigError
from mview.secrets import REFERENCE, reveal
from mview_connectors.formats.messages import OPTION_PREFIX
from mview_connectors.network import http_caution, http_urls, is_local, listed

#: Options of a registry, without the prefix of the format's options.
REGISTRY_OPTIONS = ("registry.url", "registry.username", "registry.password", "registry.ca")

#: Seconds for an answer.
_PATIENCE = 10

#: Seconds in which a new id may come to the one of several registries that is asked.
_SETTLE_S, _ASK_AGAIN_S = 2.0, 0.25

_UNAUTHORIZED = (401, 403, 407)

#: What to ask of a server that may be no registry: it needs no right and is small.
_TYPES = "/schemas/types"

_GOES_ON = "nothing is lost: reading goes on at the same offsets"


class UnknownSchemaError(Exception):
    """A registry has no schema of an id."""


class SchemaRegistry:
    """The registry of a connection's messages.

    Args:
        options: those of REGISTRY_OPTIONS; values may hold references to secrets.

    Raises:
        ConfigError: an option is missing or has no sense.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options
        if "registry.url" not in options:
            raise ConfigError(
                "messages in Avro need their schemas",
                where=_place("registry.url"),
                hint="set format.registry.url: https://… under options",
            )
        if not REFERENCE.search(self.name):
            self._urls()

    @property
    def name(self) -> str:
        """Its addresses as they are written, which tell it from others."""
        return self._options["registry.url"]

    def caution(self, section: str) -> str | None:
        """A warning where the way to it is not safe."""
        return http_caution(f"{section}.options.format.registry.url", self._urls())

    def check(self) -> str:
        """What is right: it answers, and has schemas of Avro.

        Raises:
            AwayError: no answer.
            ConfigError: it does not let us in, or is none.
        """
        try:
            types = self._ask(_TYPES, "")
        except UnknownSchemaError as error:
            raise self._no_registry("", str(error)) from None
        if type(types) is not list or "AVRO" not in types:
            raise self._no_registry("", orjson.dumps(types)[:300].decode())
        return f"{self.name} answers"

    def schema(self, number: int, where: str) -> tuple[str, list[Any]]:
        """The kind of a schema and its text, after the texts of those that it refers to.

        Args:
            number: its id.
            where: the message that has it, for errors.

        Raises:
            UnknownSchemaError: there is none of this id, also after a moment.
            AwayError: no answer.
            ConfigError: the registry does not let us in, or is none.
        """
        until = time.monotonic() + _SETTLE_S
        while True:
            try:
                found = self._ask(f"/schemas/ids/{number}", where)
                return self._with_references(found, where, set())
            except UnknownSchemaError:
                if time.monotonic() > until:
                    raise
                time.sleep(_ASK_AGAIN_S)

    def _with_references(
        self, found: Any, where: str, met: set[tuple[str, int]]
    ) -> tuple[str, list[Any]]:
        try:
            kind, text = found.get("schemaType") or "AVRO", found["schema"]
            needed = [
                (part["subject"], int(part["version"])) for part in found.get("references", ())
            ]
        except (AttributeError, LookupError, TypeError, ValueError):
            raise self._no_registry(where, orjson.dumps(found)[:300].decode()) from None
        texts: list[Any] = []
        for subject, version in needed:
            if (subject, version) not in met:
                met.add((subject, version))
                path = f"/subjects/{quote(subject, safe='')}/versions/{version}"
                texts += self._with_references(self._ask(path, where), where, met)[1]
        return str(kind), [*texts, text]

    def _ask(self, path: str, where: str) -> Any:
        """A registry's answer, of the first that gives one."""
        causes = []
        for url in self._urls():
            try:
                return self._ask_one(url.rstrip("/") + path, where)
            except (OSError, http.client.HTTPException) as error:
                causes.append(f"{type(error).__name__}: {error}"[:200])
        raise AwayError(
            f"the schema registry at {self.name} does not answer",
            where=where or _place("registry.url"),
            got="; ".join(causes),
            safe=_GOES_ON,
            hint="check that it runs and can be reached, then run the same command again",
        )

    def _ask_one(self, url: str, where: str) -> Any:
        request = urllib.request.Request(url)
        request.add_header("Accept", "application/vnd.schemaregistry.v1+json, application/json")
        if login := self._login():
            # Not to where an answer may lead on.
            request.add_unredirected_header("Authorization", login)
        try:
            with self._opener(url).open(request, timeout=_PATIENCE) as said:
                answer = said.read()
        except urllib.error.HTTPError as error:
            with error:
                self._refused(error.code, error.read(), where)
            raise
        try:
            return orjson.loads(answer)
        except orjson.JSONDecodeError:
            raise self._no_registry(where, answer[:300].decode(errors="replace")) from None

    def _refused(self, code: int, answer: bytes, where: str) -> None:
        """Raise what a refusal means; nothing, where to ask again may help."""
        text = answer[:300].decode(errors="replace")
        if code in _UNAUTHORIZED:
            raise ConfigError(
                f"the schema registry at {self.name} does not let us in",
                where=where or _place("registry.url"),
                got=f"{code} {text}",
                safe=_GOES_ON,
                hint="check format.registry.username and format.registry.password under options, "
                "and that this user may read schemas; then run the same command again",
            )
        if code == 404:
            try:
                is_told = "error_code" in orjson.loads(answer)
            except (orjson.JSONDecodeError, TypeError):
                is_told = False
            if is_told:
                raise UnknownSchemaError(text)
            raise self._no_registry(where, f"404 {text}")

    def _no_registry(self, where: str, got: str) -> ConfigError:
        return ConfigError(
            f"what answers at {self.name} is no schema registry",
            where=where or _place("registry.url"),
            got=got,
            safe=_GOES_ON,
            hint="format.registry.url is the address before /schemas; of Apicurio it ends in "
            "/apis/ccompat/v7",
        )

    def _urls(self) -> list[str]:
        place = _place("registry.url")
        try:
            return listed(http_urls(reveal(self.name, place)))
        except ValueError as error:
            raise ConfigError(
                f"{error} (registry.username: and registry.password:)", where=place
            ) from None

    def _login(self) -> str | None:
        if (user := self._options.get("registry.username")) is None:
            return None
        password = self._options.get("registry.password", "")
        login = ":".join(
            (
                reveal(user, _place("registry.username")),
                reveal(password, _place("registry.password")),
            )
        )
        return f"Basic {base64.b64encode(login.encode()).decode()}"

    def _opener(self, url: str) -> urllib.request.OpenerDirector:
        handlers: list[urllib.request.BaseHandler] = []
        if is_local(urlsplit(url).hostname):
            # A proxy of the environment must not be asked for this machine.
            handlers.append(urllib.request.ProxyHandler({}))
        if authority := self._options.get("registry.ca"):
            try:
                context = ssl.create_default_context(cafile=authority)
            except OSError as error:
                raise ConfigError(
                    f"the certificate authority cannot be read: {error.strerror or error}",
                    where=_place("registry.ca"),
                    got=authority,
                ) from None
            handlers.append(urllib.request.HTTPSHandler(context=context))
        return urllib.request.build_opener(*handlers)


def registry_of(options: Mapping[str, str]) -> SchemaRegistry | None:
    """The registry that a connection's options name; None: its messages need none.

    Args:
        options: all of its `changes`, with their prefix.

    Raises:
        ConfigError: it is not named, or is where nobody asks it.
    """
    own = {
        name.removeprefix(OPTION_PREFIX): value
        for name, value in options.items()
        if name.startswith(OPTION_PREFIX)
    }
    if own.get("encoding") == "avro":
        return SchemaRegistry(own)
    if named := [name for name in REGISTRY_OPTIONS if name in own]:
        raise ConfigError(
            "a schema registry is for messages in Avro",
            where=_place(named[0]),
            hint="set format.encoding: avro beside it, or remove it",
        )
    return None


def _place(option: str) -> str:
    return f"options.format.{option}"
