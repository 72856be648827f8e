"""SQL Server, through ODBC."""
