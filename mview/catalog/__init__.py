"""What is declared: tables, views, functions and sinks and their places."""
