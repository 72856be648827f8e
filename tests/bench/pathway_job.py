"""W1 for Pathway: `python pathway_job.py job.json`, by the Python that has it.

The file has `servers`, the topic of the view as `out`, and `commit_ms` between two outputs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pathway as pw  # type: ignore[import-not-found, unused-ignore]

#: Of each table the columns that the view needs; those of the key come first, so many.
_COLUMNS: dict[str, tuple[int, dict[str, type]]] = {
    "customer": (1, {"c_custkey": int, "c_nationkey": int}),
    "orders": (1, {"o_orderkey": int, "o_custkey": int, "o_orderdate": int}),
    "lineitem": (
        2,
        {
            "l_orderkey": int,
            "l_linenumber": int,
            "l_extendedprice": int,
            "l_discount": int,
            "l_returnflag": str,
        },
    ),
}


def table(job: dict[str, Any], name: str) -> Any:
    """A table that follows its topic."""
    keys, columns = _COLUMNS[name]
    schema = pw.schema_builder(
        {
            column: pw.column_definition(dtype=kind, primary_key=number < keys)
            for number, (column, kind) in enumerate(columns.items())
        }
    )
    settings = {
        "bootstrap.servers": job["servers"],
        "group.id": f"bench-{name}",
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": "5",
    }
    return pw.io.debezium.read(
        settings, topic_name=name, schema=schema, autocommit_duration_ms=job["commit_ms"]
    )


def main() -> None:
    """Run the view."""
    job = json.loads(Path(sys.argv[1]).read_text())
    customer, orders, lineitem = (table(job, name) for name in _COLUMNS)
    orders = orders.filter(orders.o_orderdate >= 9131)
    lineitem = lineitem.filter(lineitem.l_returnflag != "R")
    of_customers = orders.join(customer, orders.o_custkey == customer.c_custkey).select(
        orders.o_orderkey, customer.c_nationkey, orders.o_orderdate
    )
    lines = of_customers.join(lineitem, of_customers.o_orderkey == lineitem.l_orderkey).select(
        of_customers.o_orderkey,
        of_customers.c_nationkey,
        of_customers.o_orderdate,
        amount=lineitem.l_extendedprice * (100 - lineitem.l_discount),
    )
    view = lines.groupby(lines.o_orderkey, lines.c_nationkey, lines.o_orderdate).reduce(
        lines.o_orderkey,
        lines.c_nationkey,
        lines.o_orderdate,
        n_lines=pw.reducers.count(),
        revenue=pw.reducers.sum(lines.amount),
    )
    settings = {
        "bootstrap.servers": job["servers"],
        "linger.ms": "1",
        "queue.buffering.max.messages": "1000000",
    }
    pw.io.kafka.write(view, settings, topic_name=job["out"], format="json")
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)


if __name__ == "__main__":
    main()
