-- Averages of catalog sales by item and place, with subtotals.
SELECT i_item_id, ca_country, ca_state, ca_county,
       avg(CAST(cs_quantity AS decimal(12,2))) AS agg1,
       avg(CAST(cs_list_price AS decimal(12,2))) AS agg2,
       avg(CAST(cs_coupon_amt AS decimal(12,2))) AS agg3,
       avg(CAST(cs_sales_price AS decimal(12,2))) AS agg4,
       avg(CAST(cs_net_profit AS decimal(12,2))) AS agg5,
       avg(CAST(c_birth_year AS decimal(12,2))) AS agg6,
       avg(CAST(cd1.cd_dep_count AS decimal(12,2))) AS agg7
FROM tpcds.catalog_sales, tpcds.customer_demographics cd1, tpcds.customer_demographics cd2,
     tpcds.customer, tpcds.customer_address, tpcds.date_dim, tpcds.item
WHERE cs_sold_date_sk = d_date_sk
  AND cs_item_sk = i_item_sk
  AND cs_bill_cdemo_sk = cd1.cd_demo_sk
  AND cs_bill_customer_sk = c_customer_sk
  AND cd1.cd_gender = 'F'
  AND cd1.cd_education_status = 'Unknown'
  AND c_current_cdemo_sk = cd2.cd_demo_sk
  AND c_current_addr_sk = ca_address_sk
  AND c_birth_month IN (1, 6, 8, 9, 12, 2)
  AND d_year = 2000
  AND ca_state IN ('MS', 'TN', 'GA', 'TX')
GROUP BY ROLLUP (i_item_id, ca_country, ca_state, ca_county)
ORDER BY ca_country, ca_state, ca_county, i_item_id
LIMIT 100
