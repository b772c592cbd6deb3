"""``python -m relax_trace``: the command line, where ``relax-trace`` is not on the path."""

from .commands import main

main()
