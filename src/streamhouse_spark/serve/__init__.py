"""`streamhouse serve`: fresh rows for every Iceberg engine, and rows over HTTP. No part of it is needed by anything."""
