-- Products of some makers that come in given combinations.
SELECT DISTINCT i_product_name
FROM tpcds.item i1
WHERE i_manufact_id BETWEEN 2 AND 6
  AND (
    SELECT count(*) AS item_cnt
    FROM tpcds.item
    WHERE (i_manufact = i1.i_manufact
        AND ((i_category = 'Women' AND i_color IN ('powder', 'khaki')
              AND i_units IN ('Ounce', 'Oz') AND i_size IN ('medium', 'extra large'))
          OR (i_category = 'Women' AND i_color IN ('brown', 'honeydew')
              AND i_units IN ('Bunch', 'Ton') AND i_size IN ('N/A', 'small'))))
      OR (i_manufact = i1.i_manufact
        AND ((i_category = 'Home' AND i_color IN ('powder', 'brown')
              AND i_units IN ('Oz', 'Ton') AND i_size IN ('small', 'extra large'))
          OR (i_category = 'Home' AND i_color IN ('khaki', 'honeydew')
              AND i_units IN ('Ounce', 'Bunch') AND i_size IN ('medium', 'N/A'))))) > 0
ORDER BY i_product_name
LIMIT 100
