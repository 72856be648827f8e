-- The items with the worst returns of each channel in a month.
SELECT 'web' AS channel, web.item, web.return_ratio, web.return_rank,
       web.currency_rank
FROM (
  SELECT item, return_ratio, currency_ratio,
         rank() OVER (ORDER BY return_ratio) AS return_rank,
         rank() OVER (ORDER BY currency_ratio) AS currency_rank
  FROM (
    SELECT ws.ws_item_sk AS item,
           CAST(sum(coalesce(wr.wr_return_quantity, 0)) AS decimal(15,4))
             / CAST(sum(coalesce(ws.ws_quantity, 0)) AS decimal(15,4)) AS return_ratio,
           CAST(sum(coalesce(wr.wr_return_amt, 0)) AS decimal(15,4))
             / CAST(sum(coalesce(ws.ws_net_paid, 0)) AS decimal(15,4)) AS currency_ratio
    FROM tpcds.web_sales ws LEFT OUTER JOIN tpcds.web_returns wr
      ON ws.ws_order_number = wr.wr_order_number AND ws.ws_item_sk = wr.wr_item_sk,
      tpcds.date_dim
    WHERE wr.wr_return_amt > 100
      AND ws.ws_net_profit > 1
      AND ws.ws_net_paid > 0
      AND ws.ws_quantity > 0
      AND ws.ws_sold_date_sk = d_date_sk
      AND d_year = 2000
      AND d_moy = 12
    GROUP BY ws.ws_item_sk) AS in_web) AS web
WHERE web.return_rank <= 10 OR web.currency_rank <= 10
UNION
SELECT 'catalog' AS channel, catalog.item, catalog.return_ratio, catalog.return_rank,
       catalog.currency_rank
FROM (
  SELECT item, return_ratio, currency_ratio,
         rank() OVER (ORDER BY return_ratio) AS return_rank,
         rank() OVER (ORDER BY currency_ratio) AS currency_rank
  FROM (
    SELECT cs.cs_item_sk AS item,
           CAST(sum(coalesce(cr.cr_return_quantity, 0)) AS decimal(15,4))
             / CAST(sum(coalesce(cs.cs_quantity, 0)) AS decimal(15,4)) AS return_ratio,
           CAST(sum(coalesce(cr.cr_return_amount, 0)) AS decimal(15,4))
             / CAST(sum(coalesce(cs.cs_net_paid, 0)) AS decimal(15,4)) AS currency_ratio
    FROM tpcds.catalog_sales cs LEFT OUTER JOIN tpcds.catalog_returns cr
      ON cs.cs_order_number = cr.cr_order_number AND cs.cs_item_sk = cr.cr_item_sk,
      tpcds.date_dim
    WHERE cr.cr_return_amount > 100
      AND cs.cs_net_profit > 1
      AND cs.cs_net_paid > 0
      AND cs.cs_quantity > 0
      AND cs.cs_sold_date_sk = d_date_sk
      AND d_year = 2000
      AND d_moy = 12
    GROUP BY cs.cs_item_sk) AS in_catalog) AS catalog
WHERE catalog.return_rank <= 10 OR catalog.currency_rank <= 10
UNION
SELECT 'store' AS channel, store.item, store.return_ratio, store.return_rank,
       store.currency_rank
FROM (
  SELECT item, return_ratio, currency_ratio,
         rank() OVER (ORDER BY return_ratio) AS return_rank,
         rank() OVER (ORDER BY currency_ratio) AS currency_rank
  FROM (
    SELECT ss.ss_item_sk AS item,
           CAST(sum(coalesce(sr.sr_return_quantity, 0)) AS decimal(15,4))
             / CAST(sum(coalesce(ss.ss_quantity, 0)) AS decimal(15,4)) AS return_ratio,
           CAST(sum(coalesce(sr.sr_return_amt, 0)) AS decimal(15,4))
             / CAST(sum(coalesce(ss.ss_net_paid, 0)) AS decimal(15,4)) AS currency_ratio
    FROM tpcds.store_sales ss LEFT OUTER JOIN tpcds.store_returns sr
      ON ss.ss_ticket_number = sr.sr_ticket_number AND ss.ss_item_sk = sr.sr_item_sk,
      tpcds.date_dim
    WHERE sr.sr_return_amt > 100
      AND ss.ss_net_profit > 1
      AND ss.ss_net_paid > 0
      AND ss.ss_quantity > 0
      AND ss.ss_sold_date_sk = d_date_sk
      AND d_year = 2000
      AND d_moy = 12
    GROUP BY ss.ss_item_sk) AS in_store) AS store
WHERE store.return_rank <= 10 OR store.currency_rank <= 10
ORDER BY 1, 4, 5, 2
LIMIT 100
