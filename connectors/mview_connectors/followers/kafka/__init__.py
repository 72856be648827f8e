"""Topics in Kafka: a step is one transaction."""
