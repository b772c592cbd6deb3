"""The native recorder."""
