"""Sketches to the last bit as Spark makes them."""
