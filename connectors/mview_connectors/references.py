"""Options of other programs, handed on as they are, without secrets in plain text."""

from __future__ import annotations

from mview.secrets import REFERENCE, is_secret, plain_secrets


def reference(text: str) -> str:
    """A secret as a reference.

    Raises:
        ValueError: it is the secret itself.
    """
    if "${" not in text:
        raise ValueError("write ${env:NAME} or ${file:PATH}, not the secret itself")
    return text


def by_reference(values: dict[str, str]) -> dict[str, str]:
    """Options whose secrets are references; the message has no value.

    Raises:
        ValueError: one is a secret itself.
    """
    for name, text in values.items():
        if is_secret(name, text):
            raise ValueError(
                f"{name}: write ${{env:NAME}} or ${{file:PATH}}, not the secret itself"
            )
        if plain_secrets(REFERENCE.sub("", text)):
            raise ValueError(f"{name}: write the password in the URL as ${{env:NAME}}")
    return values
