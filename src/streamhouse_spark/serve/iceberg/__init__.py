"""Tables for engines that speak the REST protocol of Iceberg."""
