"""Changes of a SQLite database, by triggers that note them in a table of the same file."""
