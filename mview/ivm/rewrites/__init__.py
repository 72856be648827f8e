"""A query written so that changes concern few rows: as parts, values of subqueries, an order."""
