"""Settings of Iceberg sinks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

from pydantic import AfterValidator, Field

from mview.config import Count, Duration
from mview.errors import ConfigError
from mview.follower import DAY, FollowerSettings
from mview_connectors.followers.folders import Place
from mview_connectors.followers.properties import NUMBER, SWITCH, forms, of_forms, of_words
from mview_connectors.references import by_reference

#: `bucket(16, k)`, `day(at)`, …; a column's name alone is its identity.
_TRANSFORM = re.compile(r"(bucket|truncate)\((\d{1,6}),\s*(.+)\)|(year|month|day|hour)s?\((.+)\)")

#: A comma that is not in parentheses.
_COMMA = re.compile(r",(?![^(]*\))")


#: Catalogs that other programs see, too: pyiceberg also has one in the memory of its process.
_TYPES = ("rest", "sql", "hive", "glue", "dynamodb", "bigquery")


#: What pyiceberg reads of a table, and other engines.
_FORMS = forms(
    (
        NUMBER,
        (
            "write.parquet.page-size-bytes",
            "write.parquet.page-row-limit",
            "write.parquet.dict-size-bytes",
            "write.parquet.compression-level",
            "write.target-file-size-bytes",
            "write.summary.partition-limit",
            "write.metadata.previous-versions-max",
            "commit.manifest.target-size-bytes",
            "commit.manifest.min-count-to-merge",
            "commit.retry.num-retries",
            "commit.retry.min-wait-ms",
            "commit.retry.max-wait-ms",
            "commit.retry.total-timeout-ms",
            "history.expire.max-snapshot-age-ms",
            "history.expire.min-snapshots-to-keep",
        ),
    ),
    (
        SWITCH,
        (
            "write.metadata.delete-after-commit.enabled",
            "write.object-storage.enabled",
            "write.object-storage.partitioned-paths",
            "commit.manifest-merge.enabled",
        ),
    ),
    (
        of_words("zstd", "snappy", "gzip", "lz4", "brotli", "uncompressed"),
        ("write.parquet.compression-codec",),
    ),
    (
        of_words("gzip", "deflate", "zstd", "zstandard", "snappy", "bzip2", "null"),
        ("write.avro.compression-codec",),
    ),
)


def _of_a_known_type(catalog: dict[str, str]) -> dict[str, str]:
    """The properties of a catalog that there is.

    Raises:
        ValueError: no such type, or two ways to say it.
    """
    kind = catalog.get("type")
    if kind is None:
        return catalog
    if "py-catalog-impl" in catalog:
        raise ValueError("type and py-catalog-impl are both set")
    if "${" not in kind and kind.lower() not in _TYPES:
        raise ValueError(f"type must be one of {', '.join(_TYPES)}")
    return catalog


class IcebergSettings(FollowerSettings):
    """An Iceberg catalog as a sink."""

    hidden = ("catalog",)

    #: Readers and catalogs dislike many commits.
    every: Duration = 10_000
    #: A folder, or a URL as `s3://bucket/path`. A catalog in a SQLite file is made in a folder.
    warehouse: Place | None = None
    #: pyiceberg's properties of a catalog and of its storage; instead of the SQLite file.
    catalog: Annotated[
        dict[str, str], AfterValidator(by_reference), AfterValidator(_of_a_known_type)
    ] = Field(default_factory=dict, repr=False)
    #: How long a REST catalog may take to answer.
    timeout: Duration = 60_000
    #: The catalog's name: a SQL catalog holds the tables of several.
    catalog_name: Annotated[str, Field(min_length=1)] = "mview"
    #: Where the tables are.
    namespace: Annotated[str, Field(min_length=1)] = "default"
    #: Columns, or `bucket(n, c)`, `truncate(n, c)`, `year(c)`, `month(c)`, `day(c)`, `hour(c)`.
    #: Several with commas.
    partition: str = ""
    #: Properties of the table, as Iceberg names them.
    properties: Annotated[dict[str, str], AfterValidator(of_forms(_FORMS))] = Field(
        default_factory=dict
    )
    #: How long older snapshots stay.
    history: Duration = DAY
    #: Memory of the index of keys at the most; a larger table is searched in every step.
    index_bytes: Count = 1 << 30
    #: Rows of one data file take about so much in memory.
    file_bytes: Count = 128 << 20

    def parts(self, names: Sequence[str]) -> list[tuple[str, str]]:
        """The partition as (transform as Iceberg spells it, column).

        Raises:
            ConfigError: it is none, or of no column.
        """
        parts = []
        whole = self.partition.strip()
        # A column may have any name, also with a comma in it.
        texts = [whole] if whole in names else _COMMA.split(whole)
        for text in filter(None, map(str.strip, texts)):
            match = _TRANSFORM.fullmatch(text)
            if text in names or match is None:
                part = ("identity", text)
            elif match[1]:
                part = (f"{match[1]}[{int(match[2])}]", match[3])
            else:
                part = (match[4], match[5])
            if part[1] not in names or part[0].endswith("[0]"):
                raise ConfigError(
                    "an Iceberg table cannot be partitioned so",
                    where=f"partition of the sink for {self.table or 'the view'}",
                    got=text,
                    allowed="a column, or bucket(n, c), truncate(n, c), year(c), month(c), day(c), "
                    "hour(c) of one",
                )
            parts.append(part)
        return parts
