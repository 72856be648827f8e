"""From a view's SQL to its incremental program: one strategy per operator."""
