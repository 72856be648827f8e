-- One row per order that was paid: what it is worth.
SELECT o.id, o.customer_id, o.placed, sum(l.price * l.quantity) AS total
FROM {{ source('shop', 'orders') }} o JOIN {{ source('shop', 'lines') }} l ON l.order_id = o.id
WHERE o.status = 'paid'
GROUP BY o.id, o.customer_id, o.placed
