"""What a query means, as far as Spark lets that be set: the same for all views, wherever they run.

The engine in process and the rules of `mview/ivm` know this meaning alone. A query that Spark read
in another time zone, say, would not be the one that epochs keep up.
"""

from __future__ import annotations

#: Settings of Spark that change what comes of a query, and what they are for views.
MEANING: dict[str, str] = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.ansi.enforceReservedKeywords": "false",
    "spark.sql.ansi.relationPrecedence": "false",
    "spark.sql.caseSensitive": "false",
    "spark.sql.crossJoin.enabled": "true",
    "spark.sql.decimalOperations.allowPrecisionLoss": "true",
    "spark.sql.function.concatBinaryAsString": "false",
    "spark.sql.function.eltOutputAsString": "false",
    "spark.sql.groupByAliases": "true",
    "spark.sql.groupByOrdinal": "true",
    "spark.sql.icu.caseMappings.enabled": "true",
    "spark.sql.lateralColumnAlias.enableImplicitResolution": "true",
    "spark.sql.mapKeyDedupPolicy": "EXCEPTION",
    "spark.sql.orderByOrdinal": "true",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.parser.quotedRegexColumnNames": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
}
#: Settings with this beginning bring back what older versions made of a query.
LEGACY = "spark.sql.legacy."
_HINTS = {
    "spark.sql.session.timeZone": "a view shows the time of another zone by "
    "from_utc_timestamp(at, 'Europe/Berlin')",
    "spark.sql.ansi.enabled": "a view has NULL instead of an error by try_cast and try_divide",
}


def check_meaning(name: str, value: str) -> None:
    """Check that a setting of Spark leaves queries their meaning.

    Raises:
        ValueError: it does not.
    """
    if name.startswith(LEGACY):
        raise ValueError(f"{name}: a query would mean what it did in an older Spark; leave it out")
    always = MEANING.get(name)
    if always is None or value.strip().lower() == always.lower():
        return
    hint = f"; {_HINTS[name]}" if name in _HINTS else ""
    raise ValueError(f"{name}: it is always {always}, or views would mean something else{hint}")
