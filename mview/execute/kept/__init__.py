"""What is kept of a view beside its rows, and how a change moves it: sums, first rows."""
