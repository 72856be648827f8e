"""The in-process executor: resident tables, DuckDB over small slices, and what it may run."""
