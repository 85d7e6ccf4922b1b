{{ config(materialized='table') }}
select customer, cast(sum(amount) as bigint) as total from {{ source('shop', 'orders') }} group by customer
