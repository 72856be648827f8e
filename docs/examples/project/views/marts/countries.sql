SELECT country, count(*) AS customers, sum(revenue) AS revenue FROM revenue GROUP BY country
