"""Tables in SQL databases: the mark stands in the step's own transaction."""
