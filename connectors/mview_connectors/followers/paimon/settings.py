"""Settings of Paimon sinks."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from mview.config import Count, Duration
from mview.follower import DAY, FollowerSettings
from mview_connectors.followers.folders import Place
from mview_connectors.followers.properties import (
    NUMBER,
    SIZE,
    SWITCH,
    TIME,
    forms,
    of_forms,
    of_words,
)
from mview_connectors.references import by_reference

#: Catalogs that pypaimon has.
_METASTORES = ("filesystem", "rest", "jdbc")


#: What Paimon reads of a table.
_FORMS = forms(
    (
        SIZE,
        (
            "target-file-size",
            "manifest.target-file-size",
            "file.block-size",
            "source.split.target-size",
            "source.split.open-file-cost",
            "write-buffer-size",
            "page-size",
        ),
    ),
    (
        NUMBER,
        (
            "file.compression.zstd-level",
            "target-file-row-num",
            "num-sorted-run.compaction-trigger",
            "num-sorted-run.stop-trigger",
            "num-levels",
            "snapshot.num-retained.min",
            "snapshot.num-retained.max",
            "manifest.merge-min-count",
            "commit.max-retries",
            "scan.manifest.parallelism",
            "read.batch-size",
        ),
    ),
    (
        SWITCH,
        (
            "write-only",
            "snapshot.ignore-empty-commit",
            "metadata.iceberg.delete-after-commit.enabled",
            "parquet.write-page-index.enabled",
            "write-buffer-spillable",
        ),
    ),
    (
        TIME,
        (
            "snapshot.time-retained",
            "commit.timeout",
            "commit.min-retry-wait",
            "commit.max-retry-wait",
        ),
    ),
    (of_words("zstd", "snappy", "lz4", "gzip", "brotli", "none"), ("file.compression",)),
)


def _of_a_known_metastore(catalog: dict[str, str]) -> dict[str, str]:
    """The options of a catalog that there is.

    Raises:
        ValueError: there is none of its type.
    """
    kind = catalog.get("metastore", _METASTORES[0])
    if "${" not in kind and kind not in _METASTORES:
        raise ValueError(f"metastore must be one of {', '.join(_METASTORES)}")
    return catalog


def _of_word_characters(name: str) -> str:
    if not re.fullmatch(r"\w+", name):
        raise ValueError("must be of letters, digits and _")
    return name


class PaimonSettings(FollowerSettings):
    """A Paimon warehouse as a sink."""

    hidden = ("catalog",)

    #: Readers and file systems dislike many commits.
    every: Duration = 10_000
    #: A folder, or a URL that pypaimon reaches.
    warehouse: Place | None = None
    #: pypaimon's options of a catalog and of its storage.
    catalog: Annotated[
        dict[str, str], AfterValidator(by_reference), AfterValidator(_of_a_known_metastore)
    ] = Field(default_factory=dict, repr=False)
    #: Where the tables are.
    database: Annotated[str, AfterValidator(_of_word_characters)] = "default"
    #: Rows are spread over so many by their key; another number has the table made anew.
    buckets: Annotated[int, Field(ge=1, le=10_000)] = 1
    #: Options of the table, as Paimon names them.
    properties: Annotated[dict[str, str], AfterValidator(of_forms(_FORMS))] = Field(
        default_factory=dict
    )
    #: How long older snapshots stay.
    history: Duration = DAY
    #: Maintenance joins no more bytes of files of a bucket than so many.
    compact_bytes: Count = 128 << 20
