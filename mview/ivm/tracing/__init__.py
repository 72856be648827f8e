"""Which rows a change needs, traced up the operators: the steps of a look-up and their notes."""
