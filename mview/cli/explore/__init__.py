"""Commands that look into what a store has: why a row is as it is, what has happened, and when."""
