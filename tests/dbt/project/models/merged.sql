{{ config(materialized='incremental', incremental_strategy='merge', unique_key='id', tblproperties={'primary.key': 'id'}) }}
select id, customer, amount from {{ source('shop', 'orders') }}
