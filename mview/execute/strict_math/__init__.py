"""exp, ln, log10 and power, to the last bit as Java's StrictMath gives them, for DuckDB."""
