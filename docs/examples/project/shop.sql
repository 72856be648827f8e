-- A small shop, to try the project with: python shop.py
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL, country TEXT NOT NULL);
CREATE TABLE orders (
  id INTEGER PRIMARY KEY, customer_id INTEGER NOT NULL, status TEXT NOT NULL, placed DATE NOT NULL
);
CREATE TABLE lines (
  order_id INTEGER NOT NULL, line INTEGER NOT NULL, price DECIMAL(12, 2) NOT NULL,
  quantity INTEGER NOT NULL, PRIMARY KEY (order_id, line)
);
INSERT INTO customers VALUES (1, 'Ada', 'GB'), (2, 'Grace', 'US'), (3, 'Linus', 'FI');
INSERT INTO orders VALUES
  (1, 1, 'paid', '2026-11-01'), (2, 1, 'new', '2026-11-02'), (3, 2, 'paid', '2026-11-02');
INSERT INTO lines VALUES (1, 1, 10.50, 2), (1, 2, 4.00, 1), (2, 1, 99.00, 1), (3, 1, 7.25, 4);
