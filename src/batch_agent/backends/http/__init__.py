"""HTTP client for model servers: transports, connection pool and response parsers."""
