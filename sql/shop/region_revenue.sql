-- A view on a view: it reads order_revenue, and both show the same moment in every epoch.
CREATE MATERIALIZED VIEW region_revenue
COMMENT 'Revenue per region'
WITH (key = 'region', freshness = '10 seconds')
AS
SELECT
    region,
    count(*)     AS order_count,
    sum(revenue) AS revenue
FROM order_revenue
GROUP BY region
