{% snapshot customers_by_check %}
{{ config(schema='snapshots', unique_key='id', strategy='check', check_cols=['name'], invalidate_hard_deletes=True) }}
select * from {{ ref('customers') }}
{% endsnapshot %}
