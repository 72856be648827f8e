"""Where changes come from: Kafka, files, a database's own log."""
