"""Settings of Hudi sinks."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from mview.config import Duration
from mview.follower import FollowerSettings
from mview_connectors.followers.folders import Place


class HudiSettings(FollowerSettings):
    """A folder of Hudi tables as a sink."""

    #: Readers dislike many commits.
    every: Duration = 10_000
    #: The folder that tables are in; of this machine, or mounted.
    path: Place
    #: Rows are spread over so many by their key; another number has the table made anew.
    buckets: Annotated[int, Field(ge=1, le=10_000)] = 1
    #: How long what was replaced stays.
    history: Duration = 3_600_000
