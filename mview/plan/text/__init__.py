"""The text of a query: cut into words, parsed to a tree, written back in the user's own words."""
