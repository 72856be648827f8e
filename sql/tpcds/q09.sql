-- Average discount or payment by quantity, whichever a count decides.
SELECT CASE WHEN (SELECT count(*) FROM tpcds.store_sales
                  WHERE ss_quantity BETWEEN 1 AND 20) > 400
            THEN (SELECT avg(ss_ext_discount_amt) FROM tpcds.store_sales
                  WHERE ss_quantity BETWEEN 1 AND 20)
            ELSE (SELECT avg(ss_net_paid) FROM tpcds.store_sales
                  WHERE ss_quantity BETWEEN 1 AND 20) END AS bucket1,
       CASE WHEN (SELECT count(*) FROM tpcds.store_sales
                  WHERE ss_quantity BETWEEN 21 AND 40) > 900
            THEN (SELECT avg(ss_ext_discount_amt) FROM tpcds.store_sales
                  WHERE ss_quantity BETWEEN 21 AND 40)
            ELSE (SELECT avg(ss_net_paid) FROM tpcds.store_sales
                  WHERE ss_quantity BETWEEN 21 AND 40) END AS bucket2,
       CASE WHEN (SELECT count(*) FROM tpcds.store_sales
                  WHERE ss_quantity BETWEEN 41 AND 60) > 400
            THEN (SELECT avg(ss_ext_discount_amt) FROM tpcds.store_sales
                  WHERE ss_quantity BETWEEN 41 AND 60)
            ELSE (SELECT avg(ss_net_paid) FROM tpcds.store_sales
                  WHERE ss_quantity BETWEEN 41 AND 60) END AS bucket3,
       CASE WHEN (SELECT count(*) FROM tpcds.store_sales
                  WHERE ss_quantity BETWEEN 61 AND 80) > 900
            THEN (SELECT avg(ss_ext_discount_amt) FROM tpcds.store_sales
                  WHERE ss_quantity BETWEEN 61 AND 80)
            ELSE (SELECT avg(ss_net_paid) FROM tpcds.store_sales
                  WHERE ss_quantity BETWEEN 61 AND 80) END AS bucket4,
       CASE WHEN (SELECT count(*) FROM tpcds.store_sales
                  WHERE ss_quantity BETWEEN 81 AND 100) > 400
            THEN (SELECT avg(ss_ext_discount_amt) FROM tpcds.store_sales
                  WHERE ss_quantity BETWEEN 81 AND 100)
            ELSE (SELECT avg(ss_net_paid) FROM tpcds.store_sales
                  WHERE ss_quantity BETWEEN 81 AND 100) END AS bucket5
FROM tpcds.reason
WHERE r_reason_sk = 1
