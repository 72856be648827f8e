"""The embedded example: a shop in SQLite, its changelog as files, and somebody who keeps buying."""
