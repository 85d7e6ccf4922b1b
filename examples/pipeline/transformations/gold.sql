CREATE MATERIALIZED VIEW gold
COMMENT 'what each customer ordered'
AS SELECT customer, count(*) AS orders, sum(amount) AS amount FROM silver GROUP BY customer;
