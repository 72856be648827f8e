"""Which rows are the same (`equality`) and where: hashes, matching, look-ups, sets of keys; rows in parts (`parts`)."""
