"""Apache Paimon tables as sinks."""
