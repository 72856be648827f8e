"""Views tried on rows that a file gives, or chance: without a store, a database or Spark."""
