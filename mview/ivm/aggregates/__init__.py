"""Aggregates that are kept in a state table and added to: sums, averages, extremes."""
