-- What each customer has paid, and when last.
SELECT c.id, c.name, c.country, count(*) AS orders, sum(t.total) AS revenue, max(t.placed) AS last_order
FROM shop.customers c JOIN order_totals t ON t.customer_id = c.id
GROUP BY c.id, c.name, c.country
