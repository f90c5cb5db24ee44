"""Export of a run to Prometheus and OpenTelemetry."""
