{{ config(materialized='incremental', incremental_strategy='merge', unique_key='id', merge_update_columns=['amount']) }}
select id, customer, amount from {{ source('shop', 'orders') }}
