"""The one promise about speed that holds on any machine: a ratio. Seconds are printed, never asserted."""
from __future__ import annotations

import bench


def test_parse_and_model_cost_little_more_than_a_bare_libcst_parse():
    files = bench.sources(40)
    lines = sum(len(source.lines) for source in files)
    assert len(files) >= 30 and lines > 5000
    rows = bench.measure(files, rounds=2)
    print(bench.table(rows, lines))
    assert bench.ratio(rows, "torchlint: parse and model", "libcst.parse_module") <= 1.6
    assert bench.ratio(rows, "torchlint: every flow", "libcst.parse_module") <= 1.6
