"""Times of time zones, as Java, which Spark runs, and ICU, which DuckDB has, know them alike."""

from __future__ import annotations

import re

from mview.execute.local.admitted.entries import SPARK_DECIDES

#: The name of a zone of a region; others (`EST`, `GMT+8`) are read otherwise by one of the two.
_NAME = re.compile(r"[A-Z][A-Za-z]+(/[A-Z][A-Za-z_-]+){1,2}")
#: Zones whose rules are other ones in the data of one of the two, by their region.
_UNLIKE = {
    "Africa": {"Casablanca", "El_Aaiun"},
    "America": {
        "Bogota",
        "Edmonton",
        "Ensenada",
        "Inuvik",
        "Rainy_River",
        "Santa_Isabel",
        "Tijuana",
        "Vancouver",
        "Winnipeg",
        "Yellowknife",
    },
    "Asia": {"Tehran"},
    "Canada": {"Central", "Mountain", "Pacific"},
    "Europe": {"Chisinau", "Tiraspol"},
    "Mexico": {"BajaNorte"},
}
#: Times of which the two were compared.
_KNOWN = "{0} BETWEEN TIMESTAMP '1970-01-02' AND TIMESTAMP '9999-12-30'"
_ELSE = f"WHEN {{0}} IS NOT NULL THEN CAST({SPARK_DECIDES} AS TIMESTAMP) END)"
_LOCAL = "timezone('%s', timezone('UTC', {0}))"
# Of a time that a zone has twice, or not at all, the offset counts that was in force before it.
_OFFSET = "epoch_us(timezone('{z}', timezone('UTC', make_timestamp({t})))) - ({t})"
_BEFORE, _AFTER = (_OFFSET.replace("{t}", f"epoch_us(x) {sign} 86400000000") for sign in ("-", "+"))


def is_known(zone: str) -> bool:
    """Whether both have a zone, with the same rules."""
    region, _, place = zone.partition("/")
    return zone == "UTC" or bool(_NAME.fullmatch(zone) and place not in _UNLIKE.get(region, ()))


def to_zone(time: str, zone: str) -> str:
    """DuckDB text: what clocks of a zone show at a time of UTC; Spark decides far from today."""
    if zone == "UTC":
        return time
    text = f"(CASE WHEN {_KNOWN} THEN {_LOCAL % zone} {_ELSE}"
    return text.format(time)


def from_zone(time: str, zone: str) -> str:
    """DuckDB text: the time of UTC at which clocks of a zone show this; see `to_zone`."""
    if zone == "UTC":
        return time
    # The offsets a day before and after: that of the later one counts where it is in force, and the
    # earlier one is not.
    before, after = (text.replace("{z}", zone) for text in (_BEFORE, _AFTER))
    at = _OFFSET.replace("{z}", zone)
    first, last = "epoch_us(x) - o[1]", "epoch_us(x) - o[2]"
    is_last = f"{at.replace('{t}', first)} <> o[1] AND {at.replace('{t}', last)} = o[2]"
    chosen = f"make_timestamp(CASE WHEN {is_last} THEN {last} ELSE {first} END)"
    text = f"list_transform([[{before}, {after}]], lambda o: {chosen})[1]"
    text = f"list_transform([{{0}}], lambda x: {text})[1]"
    return f"(CASE WHEN {_KNOWN} THEN {text} {_ELSE}".format(time)
