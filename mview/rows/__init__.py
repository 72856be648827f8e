"""Which rows are the same, and where they are: hashes, matching, sorted look-ups, sets of keys."""
