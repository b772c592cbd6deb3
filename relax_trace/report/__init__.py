"""READ: a trace added up to TVM's classic per-op table, and to its other forms."""

from .calls import Calls, Rows
from .report import Report, Total
from .statistics import Statistics

__all__ = ["Calls", "Report", "Rows", "Statistics", "Total"]
