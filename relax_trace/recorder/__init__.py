"""CAPTURE: the native recorder, loading it, and reading what it hands over."""
