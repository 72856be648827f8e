"""The contract over every format, with a writer of each; one history gives equal tables in all."""

from __future__ import annotations

import random

import pytest

from mview.testing import FormatContract
from mview.testing.formats import MessageLog, TableInMemory, history, schema_of
from tests.connectors.format_writers import (
    AvroHarness,
    CanalHarness,
    DebeziumHarness,
    EnvelopedHarness,
    LegacyTicdcHarness,
    MaxwellHarness,
    NotedHarness,
    TicdcHarness,
    UnifiedHarness,
)
from tests.seeds import daily

HARNESSES = (
    CanalHarness,
    TicdcHarness,
    LegacyTicdcHarness,
    MaxwellHarness,
    UnifiedHarness,
    DebeziumHarness,
    EnvelopedHarness,
    AvroHarness,
    NotedHarness,
)


@pytest.mark.parametrize("harness", [kind() for kind in HARNESSES], ids=lambda h: type(h).__name__)
class TestFormats(FormatContract):
    pass


@pytest.mark.parametrize("number", range(3))
def test_one_history_gives_equal_tables_through_every_format(number: int) -> None:
    changes = history(MaxwellHarness(), random.Random(daily(number)), 80)
    seen: dict[str, list[list[str]]] = {}
    for kind in HARNESSES:
        harness = kind()
        log = MessageLog(harness)
        table = TableInMemory(harness.open(), schema_of(harness))
        epochs = seen.setdefault(kind.__name__, [])
        for start in range(0, len(changes), 9):
            for change in changes[start : start + 9]:
                log.add(change)
            table.take(log.next())
            epochs.append(table.content)
    # A history may end with an empty table; its epochs are not all so.
    assert any(seen["CanalHarness"])
    assert {name: epochs for name, epochs in seen.items() if epochs != seen["CanalHarness"]} == {}
