{#-- Tables and views of a schema. Spark's SHOW TABLE EXTENDED leaves views of catalogs out. dbt-spark takes the word
  iceberg for a table that can be replaced, merged into and overwritten by part; so can the tables of this catalog. --#}
{% macro spark__list_relations_without_caching(relation) %}
  {% call statement('list_views', fetch_result=True) -%}
    show views in {{ relation.schema }} like '*'
  {%- endcall %}
  {% call statement('list_tables', fetch_result=True) -%}
    show tables in {{ relation.schema }} like '*'
  {%- endcall %}
  {% set views = load_result('list_views').table.rows | map(attribute='viewName') | list %}
  {% set found = [] %}
  {% for row in load_result('list_tables').table.rows if not row['isTemporary'] %}
    {% set name = row['tableName'] %}
    {% do found.append([relation.schema, name, False, 'Type: VIEW' if name in views else 'Provider: iceberg']) %}
  {% endfor %}
  {% do return(found) %}
{% endmacro %}


{% macro spark__file_format_clause() %}
  using streamhouse
{% endmacro %}
