{{ config(materialized='view') }}
select id, customer, amount from {{ source('shop', 'orders') }} where amount >= 10
