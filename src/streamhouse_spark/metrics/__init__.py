"""Numbers about a process and what it works on: for Prometheus, and for OpenTelemetry."""
