"""OTLP: a whole Trace as spans in requests of bounded size, for a file or a receiver.

Every invocation is a span, the invocations and ops inside it are its children, and each outermost
invocation is a trace of its own. Names are in ``relax_trace.otel.conventions``.
"""
