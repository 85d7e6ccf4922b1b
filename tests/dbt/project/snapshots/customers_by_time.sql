{% snapshot customers_by_time %}
{{ config(schema='snapshots', unique_key='id', strategy='timestamp', updated_at='since') }}
select * from {{ ref('customers') }}
{% endsnapshot %}
