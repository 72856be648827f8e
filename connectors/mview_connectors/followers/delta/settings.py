"""Settings of Delta tables outside of the store, and their properties."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from mview.config import Duration
from mview.follower import DAY, FollowerSettings
from mview_connectors.followers.folders import Place
from mview_connectors.references import by_reference

#: The properties of a table that say whose it is, and what it is made of.
OWNER, MADE_OF = "mview.owner", "mview.made-of"


class DeltaSettings(FollowerSettings):
    """A folder, or a URL of an object store, with a Delta table per view."""

    hidden = ("options",)

    #: The tables lie below it: a folder, `s3://bucket/path`, `abfss://…`, `gs://…`.
    path: Place
    #: Of the object store, by the names that Delta's Rust library has (`aws_region`, …).
    options: Annotated[dict[str, str], AfterValidator(by_reference)] = Field(
        default_factory=dict, repr=False
    )
    #: Readers and logs dislike many commits.
    every: Duration = 10_000
    #: Rows that go are marked in the log; else their files are written anew.
    deletion_vectors: bool = True
    #: Older versions, and files that only they had, are removed by maintenance.
    history: Duration = 7 * DAY
