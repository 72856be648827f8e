"""Catalogs that do not wait for ever: pyiceberg's REST catalog has no time-out.

Only what uses a sink imports this module: it needs pyiceberg.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from pyiceberg.catalog import _ENV_CONFIG, TYPE, URI, CatalogType, load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    ForbiddenError,
    NotInstalledError,
    OAuthError,
    UnauthorizedError,
)
from pyiceberg.utils.config import merge_config

from mview_connectors import silence
from mview_connectors.followers.folders import LOST, refused_by_store

#: The property by which our catalog knows how long it waits, in seconds.
_TIMEOUT = "mview.timeout"


class PatientRestCatalog(RestCatalog):  # type: ignore[misc]  # untyped where it is not installed
    """A REST catalog that may be silent for so long."""

    def _create_session(self) -> Any:
        session = super()._create_session()
        bounds = silence.GREETING_S, float(self.properties[_TIMEOUT])
        # All that pyiceberg asks goes through it; it asks without a time-out.
        session.request = partial(session.request, timeout=bounds)
        return session


def catalog_of(name: str, options: Mapping[str, str], timeout_s: float) -> Any:
    """The catalog of pyiceberg's properties.

    Args:
        name: of the catalog.
        options: its properties; those of pyiceberg's own configuration come to them.
        timeout_s: seconds for which it may give no sign of itself.
    """
    # As `load_catalog` does.
    known: Any = merge_config(_ENV_CONFIG.get_catalog_config(name) or {}, dict(options))
    kind, is_http = known.get(TYPE), str(known.get(URI, "")).startswith("http")
    is_rest = str(kind).lower() == CatalogType.REST.value if kind else is_http
    if is_rest and URI in known and "py-catalog-impl" not in known:
        return PatientRestCatalog(name, **{**known, _TIMEOUT: str(timeout_s)})
    try:
        return load_catalog(name, **options)
    except ValueError as error:
        raise UnfitPropertiesError(str(error)) from error


class UnfitPropertiesError(Exception):
    """pyiceberg makes no catalog of the properties."""


def to_be_looked_at(error: BaseException) -> str | None:
    """What somebody must see to after an error; None: the same may succeed later."""
    if isinstance(error, (UnfitPropertiesError, NotInstalledError)):
        return "the properties of the catalog"
    if isinstance(
        error, (UnauthorizedError, ForbiddenError, OAuthError, AuthorizationExpiredError)
    ):
        return "the credential of the catalog, and its rights"
    if isinstance(error, FileNotFoundError):
        return LOST
    return refused_by_store(str(error)) if isinstance(error, OSError) else None
