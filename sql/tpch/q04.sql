-- Order priority checking: orders of a quarter with a late line.
SELECT o_orderpriority, count(*) AS order_count
FROM tpch.orders
WHERE o_orderdate >= DATE '1993-07-01'
  AND o_orderdate < DATE '1993-07-01' + INTERVAL 3 MONTHS
  AND EXISTS (
    SELECT * FROM tpch.lineitem WHERE l_orderkey = o_orderkey AND l_commitdate < l_receiptdate)
GROUP BY o_orderpriority
ORDER BY o_orderpriority
