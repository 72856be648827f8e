-- What every order is worth, and who placed it: three tables joined, then aggregated.
CREATE MATERIALIZED VIEW order_revenue
COMMENT 'One row per order that was not cancelled'
WITH (key = 'order_id', sink = 'delta', freshness = '10 seconds')
AS
SELECT
    o.order_id,
    o.ordered_on,
    o.status,
    c.name   AS customer,
    c.region,
    count(*) AS line_count,
    sum(l.quantity * l.price) AS revenue
FROM shop.orders o
JOIN shop.customers c ON c.customer_id = o.customer_id
JOIN shop.order_lines l ON l.order_id = o.order_id
WHERE o.status <> 'cancelled'
GROUP BY o.order_id, o.ordered_on, o.status, c.name, c.region
