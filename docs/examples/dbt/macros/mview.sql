{# A model of mview: its text becomes a view's file, and the store takes it up. #}
{% materialization mview, adapter='duckdb' %}
  {%- set existing = load_cached_relation(this) -%}
  {% if existing is not none and existing.type != 'view' %}
    {{ exceptions.raise_compiler_error(this ~ ' is a ' ~ existing.type ~ ' in dbt.duckdb: drop it first') }}
  {% endif %}
  {{ run_hooks(pre_hooks) }}
  {% do adapter.store_relation('mview', this, [], '', '', config) %}
  {% call noop_statement('main', 'APPLIED') %}{% endcall %}
  {{ run_hooks(post_hooks) }}
  {{ return({'relations': [this.incorporate(type='view')]}) }}
{% endmaterialization %}

{# In a model of mview other models and tables are named as in its files; elsewhere as dbt does it. #}
{% macro ref() %}
  {% set relation = builtins.ref(*varargs, **kwargs) %}
  {% do return(relation.identifier if shop_is_mview() else relation) %}
{% endmacro %}

{% macro source(connection, table) %}
  {% do return(connection ~ '.' ~ table if shop_is_mview() else builtins.source(connection, table)) %}
{% endmacro %}

{% macro shop_is_mview() %}
  {% do return(model is defined and model.resource_type == 'model' and model.config.materialized == 'mview') %}
{% endmacro %}
