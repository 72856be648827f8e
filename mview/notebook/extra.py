"""Libraries that only notebooks need: imported when they are used."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from mview.errors import UserError


def needed(library: str, what: str) -> ModuleType:
    """A library of the extra `notebook`.

    Args:
        library: what is imported.
        what: what needs it, for the message.

    Raises:
        UserError: it is not installed.
    """
    try:
        return import_module(library)
    except ModuleNotFoundError as error:
        missing = library.partition(".")[0]
        if (error.name or "").partition(".")[0] != missing:
            raise
        raise UserError(
            f"{what} needs the library {missing}, which is not installed",
            hint="pip install 'mview-engine[notebook]' --find-links DIR, where mview's wheel is",
        ) from None
