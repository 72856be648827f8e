"""Changes from MySQL's and MariaDB's own binary log."""
