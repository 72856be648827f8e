"""Delta tables as Parquet files and a log: what is live at a version, and one fenced commit."""
