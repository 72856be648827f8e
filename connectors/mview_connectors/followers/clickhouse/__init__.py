"""Tables in ClickHouse: a step is one part, attached once."""
