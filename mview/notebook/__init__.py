"""What notebooks and programs see: a store's views and tables, a run of it, and what is shown."""
