"""READ: a trace added up to TVM's classic per-op table, and to its other forms."""

from .report import Calls, Report, Rows, Total

__all__ = ["Calls", "Report", "Rows", "Total"]
