"""A view's file to a checked tree and the plan's nodes; nothing here runs a query."""
