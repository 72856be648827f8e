"""Java and jars: which one runs, and what is fetched once, with its digest."""
