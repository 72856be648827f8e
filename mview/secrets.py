"""Secrets: resolved at the last moment, told by their names, and starred out where text is shown.

`${env:NAME}` and `${file:PATH}` stay unresolved in the models, in plans and in files; only what
opens a connection calls `reveal`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import quote, quote_plus, unquote

from mview.errors import ConfigError, printable
from mview.files.textfile import first_bytes

# Texts are of others: no pattern of this module looks at a character more than a few times. Where
# one fails, the next place at which it can begin is behind most of what it has looked at.

#: A second `${` ends a reference that is not closed.
REFERENCE = re.compile(r"\$\{(env|file):((?:(?!\$\{)[^}])+)\}")

#: Names of options that hold secrets, for Python and for Java.
TELLING = (
    r"passw|passphrase|\bpwd|secret|token|credential|access[._-]?key|api[._-]?key"
    r"|account[._-]?key|(?:master|sas)[._-]?key|key[._-]?base64|connection[._-]?string"
    r"|private|key[._-]?pem|\bjaas\b|user[._-]?info|oauthbearer[._-]config"
    r"|(?:^|header[._-])authorization|(?:^|[._-])(?:pass|sas|sig|signature)(?:$|[._-])"
)
_TELLING = re.compile(TELLING, re.IGNORECASE)

#: What an option is that has such a name and is no secret: it says where one is, or who asks.
_PUBLIC = re.compile(r"(location|file|path|url|uri|[._-]id|provider|type|source)$", re.IGNORECASE)

#: A letter of the name in front of a password; or a reference, whose colon does not end the name.
_ANYBODY = r"(?:\$\{(?:env|file):[^{}]+\}|[^\s/@:$]|\$(?!\{(?:env|file):[^{}]+\}))"
#: A password in a URL, whoever it belongs to; some have a slash, and a port is none. The last way
#: is no secret: no @ comes, so the search goes on at the last `://` in front of which none is.
_IN_URL = re.compile(
    rf"(?P<before>://(?!\[){_ANYBODY}*:)(?:"
    r"(?P<secret>[^\s/@]+|(?!\d{1,5}[/,?#])[^\s/@\"'][^\s@\"']*)(?=@)"
    r"|(?!\d{1,5}[/,?#])[^\s/@\"'][^\s@\"']*(?=://))"
)
#: A password in front of a host without `://`, as in a list of brokers. As above, the last way is
#: no secret. Addresses of mail and digests of images look the same (`mailto:alerts@example.org`): a
#: bundle, which others read, has stars there, but no output is searched for such words.
_BEFORE_HOST = re.compile(
    rf"(?P<before>(?<![^\s,;@\"'])(?:(?![,;\"']){_ANYBODY})+:(?!//|\d{{1,5}}(?:[,;\s]|$)))"
    r"(?:(?P<secret>(?:(?!//)[^\s@\"'])+)(?=@)|(?:(?!//)[^\s@\"'])+)"
)
#: A password behind a user: `user:password`, as the value of a setting with such a name.
_BEHIND_USER = re.compile(rf"\A(?P<before>{_ANYBODY}+:)(?P<secret>.+)", re.DOTALL)
_USER = re.compile(r"(?:^|[._-])(?:user(?:[._-]?name)?|login)$", re.IGNORECASE)
#: A setting with such a name has hosts, and nothing else that has an @.
_HOSTS = re.compile(r"(?:^|[._-])(?:servers?|brokers?|hosts?)$", re.IGNORECASE)
#: A parameter of a URL.
_IN_QUERY = re.compile(r"(?P<before>[?&](?P<name>[^\s=&?#\"']+)=)(?P<secret>[^\s&#\"',;)\]}]+)")
#: A setting in the value of another one: `-c password=x`, `sv=1&sig=x`, `{"secret": "x"}`.
_ASSIGNED = re.compile(
    r"(?P<before>(?<![\w.-])(?P<name>[\w.-]+)(?:[\"']\s*:|\s*=)\s*[\"']?)(?P<secret>[^\s&;,\"'}]+)"
)

_MASK = "******"
#: Values of settings with telling names that are no secrets, and words of every text.
_WORDS = {"true", "false", "none", "null"}
#: A shorter secret is a part of common words: it is hidden where it stands as a value only.
_LONG = 4
#: A line of a longer secret (a key, a certificate) is one by itself from this length on.
_LINE = 8
_SECRET_BYTES = 1 << 20


def is_telling(name: str) -> bool:
    """Whether an option's name says that its value is a secret."""
    return _TELLING.search(name) is not None


def is_secret(name: str, value: str) -> bool:
    """Whether an option's value is a secret in plain text."""
    return (
        is_telling(name)
        and _PUBLIC.search(name) is None
        and bool(value)
        and value.lower() not in _WORDS
        and REFERENCE.search(value) is None
    )


def reveal(text: str, where: str) -> str:
    """The text with `${env:…}` and `${file:…}` replaced. The result must not be logged or stored.

    Raises:
        ConfigError: the variable or file is missing, or no text; the message has its name, never a
            value.
    """

    def resolve(match: re.Match[str]) -> str:
        kind, name = match.groups()
        secret = _of_environment(name, where) if kind == "env" else _of_file(name, where)
        try:
            secret.encode()
        except UnicodeEncodeError:
            raise ConfigError(f"{kind} {name} is not UTF-8 text", where=where) from None
        return secret

    return REFERENCE.sub(resolve, text)


def _of_environment(name: str, where: str) -> str:
    if name not in os.environ:
        raise ConfigError(
            f"environment variable {name} is not set", where=where, hint=f"export {name}=…"
        )
    return os.environ[name]


def _of_file(name: str, where: str) -> str:
    try:
        content = first_bytes(Path(name).expanduser(), _SECRET_BYTES + 1)
        if len(content) > _SECRET_BYTES:
            raise ConfigError(f"secret file {name} is larger than 1 MB", where=where)
        return content.decode().strip()
    except UnicodeDecodeError:
        raise ConfigError(f"secret file {name} is not UTF-8 text", where=where) from None
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"secret file {name} cannot be read: {reason}", where=where) from None


def secrets_of(name: str, value: object) -> set[str]:
    """What must not be seen of an option's value, or of the options in it, resolved.

    That is what a `${env:…}` or `${file:…}` stands for, a plain value under a telling name, and
    what is one within a value: see `plain_secrets`.
    """
    if isinstance(value, dict):
        return {secret for key, part in value.items() for secret in secrets_of(str(key), part)}
    if isinstance(value, list):
        return {secret for part in value for secret in secrets_of(name, part)}
    if not isinstance(value, str):
        return set()
    references = [match.group(0) for match in REFERENCE.finditer(value)]
    if not references and is_telling(name):
        return set() if value.lower() in _WORDS else {value}
    secrets = plain_secrets(value, name)
    for reference in references:
        try:
            secrets.add(reveal(reference, name))
        except ConfigError:
            continue  # not set: there is nothing to hide, and the command will say so
    return secrets


def plain_secrets(text: str, name: str = "") -> set[str]:
    """What is a secret in the text of a setting: a password in a URL, a parameter with such a name.

    Args:
        text: the value.
        name: of the setting: one of a user may have `user:password`, one of hosts a password in
            front of each.

    >>> sorted(plain_secrets("postgresql://me:a/b@host/db?password=c%21&sslmode=require"))
    ['a/b', 'c!', 'c%21']
    """
    patterns = _within(name, any_host=_HOSTS.search(name) is not None)
    parts = (match for pattern in patterns for match in pattern.finditer(text))
    secrets = {match["secret"] for match in parts if _hides(match)}
    return secrets | {unquote(secret) for secret in secrets}


def starred(name: str, text: str) -> str:
    """The text of a setting with stars in the place of what may be a plain secret."""
    for pattern in _within(name, any_host=True):
        text = pattern.sub(_hide, text)
    return text


def _within(name: str, *, any_host: bool) -> Iterator[re.Pattern[str]]:
    if _USER.search(name):
        yield _BEHIND_USER
    yield _IN_URL
    if any_host:
        yield _BEFORE_HOST
    yield from (_IN_QUERY, _ASSIGNED)


def _hides(match: re.Match[str]) -> bool:
    if match["secret"] is None:
        return False  # looked at, and no password
    return is_secret(match.groupdict().get("name", "password"), match["secret"])


def _hide(match: re.Match[str]) -> str:
    return f"{match['before']}{_MASK}" if _hides(match) else match[0]


def _hide_any(match: re.Match[str]) -> str:
    return match[0] if match["secret"] is None else f"{match['before']}{_MASK}"


class Mask:
    """Puts stars in the place of secrets, and of every password that stands in a URL.

    A secret of fewer than four characters is hidden where it stands as a value (after `=` or `:`,
    in quotes, before `@`): elsewhere every word would be starred out that has its letters.

    Args:
        secrets: what to hide.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        spelled = {form for secret in secrets for form in _spellings(secret) if form.strip()}
        # The longest first: one secret may be a part of another.
        forms = [_pattern(form) for form in sorted(spelled, key=len, reverse=True)]
        self._hidden = re.compile("|".join(forms)) if forms else None

    def __call__(self, text: str) -> str:
        """The text without secrets."""
        hidden = self._hidden.sub(_MASK, text) if self._hidden else text
        return _IN_QUERY.sub(_hide, _IN_URL.sub(_hide_any, hidden))


def _pattern(form: str) -> str:
    # Blocks of errors begin each line of a value with a margin.
    exact = re.escape(form).replace(re.escape("\n"), r"\n *")
    if len(form) >= _LONG:
        return exact
    return rf"(?<=[=:'\"/]){exact}(?=[\s'\"@&;,)\]}}]|$)|(?<=[=:] ){exact}(?=[\s'\"@&;,)\]}}]|$)"


def _spellings(secret: str) -> Iterator[str]:
    """How a secret may stand in a message: as it is, URL-quoted, escaped by JSON, repr or us."""
    lines = (line for line in secret.splitlines() if len(line) >= _LINE)
    for text in (secret, secret.strip(), *lines):
        yield from (
            text,
            printable(text),
            quote(text, safe=""),
            quote_plus(text),
            json.dumps(text)[1:-1],
        )
        yield repr(text)[1:-1]
