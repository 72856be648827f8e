"""Changes that are topics in Kafka."""
