"""Tables that are written inside of the epoch."""
