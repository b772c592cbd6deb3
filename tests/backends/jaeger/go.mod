// Jaeger, in a module of its own: it is made of another release of the collector's modules.
module relax_trace/tests/backends/jaeger

go 1.25.0

tool github.com/jaegertracing/jaeger/cmd/jaeger

require github.com/jaegertracing/jaeger v1.76.0 // which is Jaeger 2.13
