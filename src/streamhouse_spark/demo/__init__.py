"""``streamhouse demo``: real flights stream into a table, are tiered to Iceberg, and are queried meanwhile."""
