"""Bulk reads over Arrow Flight."""
