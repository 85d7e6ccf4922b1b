"""``streamhouse demo``: stream real flights into a table, tier them to Iceberg, and query both concurrently."""
