"""Apache Hudi tables as sinks."""
