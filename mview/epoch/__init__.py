"""One epoch from rows to a published manifest, with its views."""
