-- What each customer has paid.
SELECT c.id, c.name, count(*) AS orders, sum(t.total) AS revenue
FROM {{ source('shop', 'customers') }} c JOIN {{ ref('order_totals') }} t ON t.customer_id = c.id
GROUP BY c.id, c.name
