"""How queries for the in-process engine are read, and what names in them mean."""
