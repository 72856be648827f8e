-- Kinds of customers of some counties who bought in stores and in another channel.
SELECT cd_gender, cd_marital_status, cd_education_status, count(*) AS cnt1,
       cd_purchase_estimate, count(*) AS cnt2, cd_credit_rating, count(*) AS cnt3
FROM tpcds.customer c, tpcds.customer_address ca, tpcds.customer_demographics
WHERE c.c_current_addr_sk = ca.ca_address_sk
  AND ca_county IN ('Rush County', 'Toole County', 'La Porte County')
  AND cd_demo_sk = c.c_current_cdemo_sk
  AND EXISTS (
    SELECT * FROM tpcds.store_sales, tpcds.date_dim
    WHERE c.c_customer_sk = ss_customer_sk AND ss_sold_date_sk = d_date_sk
      AND d_year = 2000 AND d_moy BETWEEN 1 AND 4)
  AND (EXISTS (
      SELECT * FROM tpcds.web_sales, tpcds.date_dim
      WHERE c.c_customer_sk = ws_bill_customer_sk AND ws_sold_date_sk = d_date_sk
        AND d_year = 2000 AND d_moy BETWEEN 1 AND 4)
    OR EXISTS (
      SELECT * FROM tpcds.catalog_sales, tpcds.date_dim
      WHERE c.c_customer_sk = cs_ship_customer_sk AND cs_sold_date_sk = d_date_sk
        AND d_year = 2000 AND d_moy BETWEEN 1 AND 4))
GROUP BY cd_gender, cd_marital_status, cd_education_status, cd_purchase_estimate,
         cd_credit_rating
ORDER BY cd_gender, cd_marital_status, cd_education_status, cd_purchase_estimate,
         cd_credit_rating
LIMIT 100
