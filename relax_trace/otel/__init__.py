"""What relax_trace shows to OpenTelemetry; nothing here imports it before it is needed."""
