"""What only Python knows of a recording: names of VMs and threads, how the process is set up."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace

from .attach import Attachment
from .recorder.decode import Labels, extern_suffixes


def labels_now(attachments: Sequence[Attachment]) -> Labels:
    """The labels as they are now, for a recording of these VMs."""
    import tvm_ffi

    threads = tvm_ffi.get_global_func("runtime.NumThreads", allow_missing=True)
    configuration = {"Number of threads": str(threads())} if threads else {}
    given = [attachment.name for attachment in attachments if attachment.name]
    if given:
        configuration["Names of VMs"] = ", ".join(dict.fromkeys(given))
    return Labels(
        vms=_names_of(attachments),
        threads={
            thread.native_id: thread.name for thread in threading.enumerate() if thread.native_id
        },
        suffixes=(),
        process=os.path.basename(sys.argv[0]) or "python",
        configuration={**configuration, "Executor": "VM"},
    )


def _names_of(attachments: Sequence[Attachment]) -> dict[int, str]:
    """The name each VM was given; the others are counted, unless there is only one."""
    unnamed = sorted(attachment.number for attachment in attachments if not attachment.name)
    names = {attachment.number: attachment.name for attachment in attachments if attachment.name}
    if len(unnamed) == 1:
        return {**names, unnamed[0]: "vm"}
    return {**names, **{number: f"vm{i + 1}" for i, number in enumerate(unnamed)}}


def with_suffixes(labels: Labels) -> Labels:
    """The same with the endings of external functions' names: listing all names takes 5 ms."""
    import tvm_ffi

    suffixes = extern_suffixes(tvm_ffi.registry.list_global_func_names())
    return replace(labels, suffixes=suffixes)
