"""The functions of SQL: their names and what each does to rows, built in or declared."""
