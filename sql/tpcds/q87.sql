-- Customers who bought in a store and in no other channel on that day.
SELECT count(*) AS customers
FROM (
  SELECT DISTINCT c_last_name, c_first_name, d_date
  FROM tpcds.store_sales, tpcds.date_dim, tpcds.customer
  WHERE store_sales.ss_sold_date_sk = date_dim.d_date_sk
    AND store_sales.ss_customer_sk = customer.c_customer_sk
    AND d_month_seq BETWEEN 1200 AND 1200 + 11
  EXCEPT
  SELECT DISTINCT c_last_name, c_first_name, d_date
  FROM tpcds.catalog_sales, tpcds.date_dim, tpcds.customer
  WHERE catalog_sales.cs_sold_date_sk = date_dim.d_date_sk
    AND catalog_sales.cs_bill_customer_sk = customer.c_customer_sk
    AND d_month_seq BETWEEN 1200 AND 1200 + 11
  EXCEPT
  SELECT DISTINCT c_last_name, c_first_name, d_date
  FROM tpcds.web_sales, tpcds.date_dim, tpcds.customer
  WHERE web_sales.ws_sold_date_sk = date_dim.d_date_sk
    AND web_sales.ws_bill_customer_sk = customer.c_customer_sk
    AND d_month_seq BETWEEN 1200 AND 1200 + 11) AS cool_cust
