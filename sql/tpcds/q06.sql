-- States whose customers bought items well above the price of their category.
SELECT a.ca_state AS state, count(*) AS cnt
FROM tpcds.customer_address a, tpcds.customer c, tpcds.store_sales s, tpcds.date_dim d,
     tpcds.item i
WHERE a.ca_address_sk = c.c_current_addr_sk
  AND c.c_customer_sk = s.ss_customer_sk
  AND s.ss_sold_date_sk = d.d_date_sk
  AND s.ss_item_sk = i.i_item_sk
  AND d.d_month_seq = (
    SELECT DISTINCT d_month_seq FROM tpcds.date_dim WHERE d_year = 2000 AND d_moy = 1)
  AND i.i_current_price > 1.2 * (
    SELECT avg(j.i_current_price) FROM tpcds.item j WHERE j.i_category = i.i_category)
GROUP BY a.ca_state
HAVING count(*) >= 3
ORDER BY cnt, a.ca_state
LIMIT 100
