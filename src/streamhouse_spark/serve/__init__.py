"""`streamhouse serve`: fresh rows for Iceberg engines, and rows over HTTP. Nothing else depends on this package."""
