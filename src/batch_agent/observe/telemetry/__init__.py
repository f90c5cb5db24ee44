"""A run for other systems: Prometheus and OpenTelemetry."""
