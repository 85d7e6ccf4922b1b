"""Metrics of a process and its work, for Prometheus and OpenTelemetry."""
