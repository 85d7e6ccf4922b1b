{{ config(materialized='table', tblproperties={'primary.key': 'customer', 'bucket.num': '2'}) }}
select t.customer, c.name, t.total from {{ ref('totals') }} t join {{ ref('customers') }} c on c.id = t.customer
