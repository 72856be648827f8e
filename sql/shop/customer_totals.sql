-- How much every customer has bought. A bare SELECT is a view, too: the file gives the name, the
-- GROUP BY gives the key.
SELECT
    o.customer_id,
    count(*)        AS line_count,
    sum(l.quantity) AS pieces,
    sum(l.quantity * l.price) AS total
FROM shop.orders o
JOIN shop.order_lines l ON l.order_id = o.order_id
WHERE o.status <> 'cancelled'
GROUP BY o.customer_id
