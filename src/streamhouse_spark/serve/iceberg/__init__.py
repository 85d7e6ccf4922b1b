"""Tables for engines that use the Iceberg REST catalog protocol."""
