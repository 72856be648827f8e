"""Changes from PostgreSQL's own log, by a replication slot."""
