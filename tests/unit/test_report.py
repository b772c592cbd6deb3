"""The report, against text computed by hand."""

from __future__ import annotations

import json
import textwrap

import pytest

from relax_trace import Losses
from relax_trace.report import Report
from relax_trace.trace import ABORTED, SIGNATURE_LOST, SYNCHRONIZED
from unit.traces import Call, Op, trace_of

VM = {"Number of threads": "6", "Executor": "VM"}


@pytest.fixture(autouse=True)
def _c_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C")


def exact(text: str) -> str:
    """A table written with a ``$`` where each of its lines ends, so that trailing spaces show."""
    return textwrap.dedent(text).lstrip("\n").replace("$\n", "\n")


def test_the_classic_sample() -> None:
    """The sample of TVM's own table comes out byte for byte (one more row makes its sum add up)."""
    conv = "float32[1, 64, 56, 56], float32[64, 64, 3, 3], float32[1, 64, {0}, {0}]"
    weight = "float32[64, 64, 3, 3]"
    trace = trace_of(
        [
            Op("vm.builtin.match_shape", 0, 745, weight, kind="builtin"),
            Op("fused_relax_nn_conv2d_relax_nn_relu1_dnnl", 1000, 369_990, conv.format(54)),
            Op("vm.builtin.match_shape", 370_000, 370_745, weight, kind="builtin"),
            Op("fused_relax_nn_conv2d_relax_nn_relu_dnnl", 371_000, 825_590, conv.format(56)),
            *(Op("reshape", 826_000 + i * 1000, 826_975 + i * 1000, weight) for i in range(4)),
        ],
        [Call(0, 871_930)],
        configuration=VM,
    )
    expected = exact("""
        Name                                       Duration (us)  Percent  Device  Count                                                        Argument Shapes  $
        fused_relax_nn_conv2d_relax_nn_relu_dnnl          454.59    52.14    cpu0      1  float32[1, 64, 56, 56], float32[64, 64, 3, 3], float32[1, 64, 56, 56]  $
        fused_relax_nn_conv2d_relax_nn_relu1_dnnl         368.99    42.32    cpu0      1  float32[1, 64, 56, 56], float32[64, 64, 3, 3], float32[1, 64, 54, 54]  $
        reshape                                             3.90     0.45    cpu0      4                                                  float32[64, 64, 3, 3]  $
        vm.builtin.match_shape                              1.49     0.17    cpu0      2                                                  float32[64, 64, 3, 3]  $
        ----------                                                                                                                                               $
        Sum                                               828.97    95.07              8                                                                         $
        Total                                             871.93             cpu0      1                                                                         $
        $
        Configuration
        -------------
        Number of threads: 6
        Executor: VM
    """)  # noqa: E501
    assert Report.from_trace(trace).table() == expected
    assert str(Report.from_trace(trace)) == expected


def test_order_of_recording() -> None:
    """Unsorted rows come in the order of recording, one a call or in order of their first call."""
    trace = trace_of(
        [
            Op("b", 0, 1000, "int64[]"),
            Op("a", 1000, 5000, "int64[]"),
            Op("b", 5000, 10_000, "int64[]"),
        ]
    )
    report = Report.from_trace(trace)
    assert report.table(sort=False, aggregate=False, col_sums=False) == exact("""
        Name   Duration (us)  Percent  Device  Count  Argument Shapes  $
        b               1.00    10.00    cpu0      1          int64[]  $
        a               4.00    40.00    cpu0      1          int64[]  $
        b               5.00    50.00    cpu0      1          int64[]  $
        Total          10.00             cpu0      1                   $
        $
        Configuration
        -------------
    """)
    assert first_column(report.table(sort=True, aggregate=False)) == ["b", "a", "b"]
    assert first_column(report.table(sort=False)) == ["b", "a"]
    assert first_column(report.table(sort=True)) == ["b", "a"]


def first_column(table: str) -> list[str]:
    """Names of the rows above the sum."""
    names = [line.split(" ")[0] for line in table.splitlines()[1:]]
    return names[: names.index("----------")]


def test_nested_functions_are_not_counted_twice() -> None:
    """A Relax function shows its own time, so that the sum stays below the total; or all of it."""
    trace = trace_of(
        [
            Op("subgraph", 0, 9000, "int64[4]", kind="function"),
            Op("add", 1000, 3000, "int64[4]", parent=0),
            Op("inner", 3000, 7000, "int64[4]", kind="function", parent=0),
            Op("mul", 4000, 5000, "int64[4]", parent=2),
        ],
        [Call(0, 10_000)],
    )
    assert Report.from_trace(trace).table() == exact("""
        Name        Duration (us)  Percent  Device  Count  Argument Shapes  $
        subgraph             3.00    30.00    cpu0      1         int64[4]  $
        inner                3.00    30.00    cpu0      1         int64[4]  $
        add                  2.00    20.00    cpu0      1         int64[4]  $
        mul                  1.00    10.00    cpu0      1         int64[4]  $
        ----------                                                          $
        Sum                  9.00    90.00              4                   $
        Total               10.00             cpu0      1                   $
        $
        Configuration
        -------------
    """)
    inclusive = Report.from_trace(trace, inclusive=True)
    assert inclusive.calls.duration.tolist() == [9000, 2000, 4000, 1000]


def test_a_vm_inside_a_call_of_another() -> None:
    """An invocation made inside a call is a part of it: of its time, and once of a total."""
    trace = trace_of(
        [
            Op("first", 0, 1000, "int64[]"),
            Op("run_other_vm", 2000, 9000, "int64[]", kind="extern"),
            Op("prepare", 2500, 3000, "int64[]", parent=1),
            Op("add", 4000, 6000, "int64[]", "cuda0", invocation=1, flags=SYNCHRONIZED),
            Op("mul", 6000, 7000, "int64[]", invocation=1),
            Op("elsewhere", 6500, 9500, "int64[]", invocation=2, thread=1),
        ],
        [Call(0, 10_000), Call(3500, 8000, "helper", parent=0), Call(6000, 10_000, thread=1)],
    )
    assert Report.from_trace(trace).table(sort=False) == exact("""
        Name          Duration (us)  Percent  Device  Count  Argument Shapes  $
        first                  1.00     7.14    cpu0      1          int64[]  $
        run_other_vm           3.50    25.00    cpu0      1          int64[]  $
        prepare                0.50     3.57    cpu0      1          int64[]  $
        add                    2.00    14.29   cuda0      1          int64[]  $
        mul                    1.00     7.14    cpu0      1          int64[]  $
        elsewhere              3.00    21.43    cpu0      1          int64[]  $
        ----------                                                            $
        Sum                   11.00    78.57              6                   $
        Total                 14.00             cpu0      2                   $
        Total                 10.00            cuda0      1                   $
        $
        Configuration
        -------------
    """)


def test_several_devices() -> None:
    """Rows of one op on two devices stay apart; percents are of the largest total."""
    trace = trace_of(
        [
            Op("softmax", 0, 1000, "float32[8]", "cpu0"),
            Op("softmax", 1000, 2000, "float32[8]", "hexagon0", flags=SYNCHRONIZED),
            Op("softmax", 2000, 4000, "float32[8]", "hexagon0", invocation=1, flags=SYNCHRONIZED),
            Op("alloc_storage", 4000, 5000, "shape[8]", "cuda0", "builtin", invocation=2),
        ],
        [Call(0, 2000), Call(2000, 4000), Call(4000, 5000)],
    )
    assert Report.from_trace(trace).table() == exact("""
        Name        Duration (us)  Percent    Device  Count  Argument Shapes  $
        softmax              3.00    75.00  hexagon0      2       float32[8]  $
        softmax              1.00    25.00      cpu0      1       float32[8]  $
        ----------                                                            $
        Sum                  4.00   100.00                3                   $
        Total                2.00               cpu0      1                   $
        Total                4.00           hexagon0      2                   $
        $
        Configuration
        -------------
    """)


def test_which_calls_are_listed() -> None:
    """Those with a tensor, in a tuple too, and a kernel whose arguments were lost; or all."""
    trace = trace_of(
        [
            Op("alloc_storage", 0, 1000, "shape[8], 0", kind="builtin"),
            Op("concatenate", 1000, 2000, "(float32[4], (float32[4], int64[])), 0"),
            Op("null_value", 2000, 3000, kind="builtin", device=None),
            Op("dense", 3000, 4000, flags=SIGNATURE_LOST),
            Op("failing", 4000, 5000, "bool[2, 3]", flags=ABORTED),
        ],
        losses=Losses(signatures=1),
    )
    assert Report.from_trace(trace).table(sort=False) == exact("""
        Name         Duration (us)  Percent  Device  Count                      Argument Shapes  $
        concatenate           1.00    20.00    cpu0      1  (float32[4], (float32[4], int64[]))  $
        dense                 1.00    20.00    cpu0      1                                       $
        failing               1.00    20.00    cpu0      1                           bool[2, 3]  $
        ----------                                                                               $
        Sum                   3.00    60.00              3                                       $
        Total                 5.00             cpu0      1                                       $
        $
        Configuration
        -------------
        Calls without argument shapes: 1
    """)
    everything = Report.from_trace(trace, calls="all").table(sort=False, col_sums=False)
    assert everything == exact("""
        Name           Duration (us)  Percent  Device  Count                      Argument Shapes  $
        alloc_storage           1.00    20.00    cpu0      1                          shape[8], 0  $
        concatenate             1.00    20.00    cpu0      1  (float32[4], (float32[4], int64[]))  $
        null_value              1.00    20.00              1                                       $
        dense                   1.00    20.00    cpu0      1                                       $
        failing                 1.00    20.00    cpu0      1                           bool[2, 3]  $
        Total                   5.00             cpu0      1                                       $
        $
        Configuration
        -------------
        Calls without argument shapes: 1
    """)
    with pytest.raises(ValueError, match='"tensors" or "all", not \'some\''):
        Report.from_trace(trace, calls="some")  # type: ignore[arg-type]


def test_signatures_that_read_the_same_are_one_row() -> None:
    """What a table doesn't show (numbers beside a tensor, the kind) doesn't split a row."""
    trace = trace_of(
        [
            Op("match_shape", 0, 1000, "int64[2], 3", kind="builtin"),
            Op("match_shape", 1000, 3000, "int64[2], 4", kind="extern"),
        ]
    )
    report = Report.from_trace(trace)
    assert report.table(col_sums=False).splitlines()[1:-4] == [
        "match_shape           3.00   100.00    cpu0      2         int64[2]  "
    ]


def test_many_different_signatures_add_up_the_same() -> None:
    """Where names times shapes are too many to count in an array, the rows are as otherwise."""
    ops = [Op(f"op{i % 400}", i, i + 1 + i % 400, f"int64[{i % 400}]") for i in range(800)]
    table = Report.from_trace(trace_of(ops)).table(sort=False, col_sums=False)
    rows = [line.split() for line in table.splitlines()[1:401]]
    expected = [[f"op{i}", f"{(2 * i + 2) / 1000:.2f}", "2", f"int64[{i}]"] for i in range(400)]
    assert [[row[0], row[1], row[4], row[5]] for row in rows] == expected


def test_durations_add_up_exactly() -> None:
    """Nanoseconds are summed as integers, also where a float would round them."""
    long = 2**53
    trace = trace_of([Op("a", 0, long, "int64[]"), Op("a", long, long + 1, "int64[]")])
    report = Report.from_trace(trace)
    assert report.calls.rows(aggregate=True).duration.tolist() == [2**53 + 1]
    assert report.totals[0].duration == 2**53 + 1


def test_nothing_took_time() -> None:
    """Zero durations and an empty trace give zeros, never nan, and valid JSON."""
    zero = Report.from_trace(trace_of([Op("a", 5, 5, "int64[]")], configuration=VM))
    assert zero.table() == exact("""
        Name        Duration (us)  Percent  Device  Count  Argument Shapes  $
        a                    0.00     0.00    cpu0      1          int64[]  $
        ----------                                                          $
        Sum                  0.00     0.00              1                   $
        Total                0.00             cpu0      1                   $
        $
        Configuration
        -------------
        Number of threads: 6
        Executor: VM
    """)
    assert json.loads(zero.json())["calls"][0]["Percent"] == {"percent": 0.0}
    empty = Report.from_trace(trace_of([], [Call(0, 9), Call(1, 2, parent=0)]))
    assert empty.table() == exact("""
        Name        Duration (us)  Percent  Device  Count  Argument Shapes  $
        ----------                                                          $
        Sum                  0.00     0.00              0                   $
        $
        Configuration
        -------------
    """)
    assert empty.csv() == "Argument Shapes,Count,Device,Duration (us),Name,Percent\n"
    assert json.loads(empty.json()) == {"calls": [], "device_metrics": {}, "configuration": {}}


def test_csv() -> None:
    """Headers in byte order, quotes doubled, numbers in full precision, what is missing empty."""
    trace = trace_of(
        [
            Op('say "hi", twice', 0, 1_376_783_001, "int64[1, 2]"),
            Op("null_value", 2**31, 2**31 + 7),
        ],
        [Call(0, 3_200_000_000)],
    )
    report = Report.from_trace(trace, calls="all")
    assert report.csv() == (
        "Argument Shapes,Count,Device,Duration (us),Name,Percent\n"
        '"int64[1, 2]",1,"cpu0",1376783.001,"say ""hi"", twice",43.02446878125\n'
        ',1,"cpu0",0.007,"null_value",2.1875e-07\n'
    )


def test_json() -> None:
    """TVM's structure of metric objects, for any name."""
    name = 'a"\\\n\0</script>\udcff'
    trace = trace_of(
        [Op(name, 0, 1_376_783_001, "int64[1, 2]"), Op("null_value", 2**31, 2**31, device=None)],
        [Call(0, 2_753_566_002)],
        configuration=VM,
    )
    assert json.loads(Report.from_trace(trace, calls="all").json()) == {
        "calls": [
            {
                "Name": {"string": name},
                "Duration (us)": {"microseconds": 1376783.001},
                "Percent": {"percent": 50.0},
                "Device": {"string": "cpu0"},
                "Count": {"count": 1},
                "Argument Shapes": {"string": "int64[1, 2]"},
            },
            {
                "Name": {"string": "null_value"},
                "Duration (us)": {"microseconds": 0.0},
                "Percent": {"percent": 0.0},
                "Count": {"count": 1},
            },
        ],
        "device_metrics": {
            "cpu0": {
                "Name": {"string": "Total"},
                "Duration (us)": {"microseconds": 2753566.002},
                "Device": {"string": "cpu0"},
                "Count": {"count": 1},
            }
        },
        "configuration": {"Number of threads": {"count": 6}, "Executor": {"string": "VM"}},
    }


def test_names_can_not_drive_a_terminal() -> None:
    """Escapes, line ends, NUL, C1, bidi overrides and broken UTF-8 show; length is bounded."""
    shown = {
        "\x1b[31mred": "\\x1b[31mred",
        "two\nlines\r": "two\\nlines\\r",
        "nul\0": "nul\\x00",
        "c1\x9b2J": "c1\\x9b2J",
        "bidi\u202eevil": "bidi\\u202eevil",
        "\udcff": "\\udcff",
        "größe": "größe",
        "x" * 10**7: "x" * 4096 + "...",
    }
    ops = [Op(name, 0, 1, "int64[]") for name in shown]
    trace = trace_of(ops, configuration={"k\n": "\x1b[0m"})
    table = Report.from_trace(trace).table(sort=False)
    assert first_column(table) == list(shown.values())
    assert len({len(line) for line in table.splitlines()[:12]}) == 1
    assert table.splitlines()[-1] == "k\\n: \\x1b[0m"


def test_what_a_reader_has_to_know() -> None:
    """Losses and launch times are said below the table, and only then."""
    ops = [
        Op("a", 0, 10, "int64[]", "cuda0"),
        Op("a", 0, 10, "int64[]", "vulkan1"),
        Op("a", 0, 10, "int64[]", "cuda1", flags=SYNCHRONIZED),
        Op("a", 0, 10, "int64[]", "cpu0"),
        Op("alloc_storage", 0, 10, "shape[1]", "hexagon0"),
    ]
    lost = Report.from_trace(trace_of(ops, configuration=VM, losses=Losses(1234, 2, 3)))
    assert lost.table().splitlines()[-6:] == [
        "Number of threads: 6",
        "Executor: VM",
        "Calls dropped: 1234",
        "Invocations dropped: 2",
        "Calls without argument shapes: 3",
        "Timing: host (launch times, not run times, on cuda0, vulkan1)",
    ]
    assert Report.from_trace(trace_of(ops[2:], configuration=VM)).configuration == VM
