"""How fast this machine is, beside other libraries on the same problems in turns; and how good controllers are."""

from benchmarks.data import bench_data, bench_regeneration
from benchmarks.identifying import bench_identify
from benchmarks.learned_agents import AgentRow, Training, bench_rl
from benchmarks.loading import bench_large, bench_loading, source_rows
from benchmarks.measurement import Row, measure
from benchmarks.records import Change, compare, measure_all, page, read
from benchmarks.recovery import bench_recovery
from benchmarks.riccati import bench_control
from benchmarks.riccati_acceptance import acceptance
from benchmarks.startup import bench_start
from benchmarks.stepping import bench_env
from benchmarks.training import bench_train
from benchmarks.unknown_plants import FULL, QUICK, Size, UnknownRow, bench_unknown, tune_unknown

__all__ = [
    "FULL",
    "QUICK",
    "AgentRow",
    "Change",
    "Row",
    "Size",
    "Training",
    "UnknownRow",
    "acceptance",
    "bench_control",
    "bench_data",
    "bench_env",
    "bench_identify",
    "bench_large",
    "bench_loading",
    "bench_recovery",
    "bench_regeneration",
    "bench_rl",
    "bench_start",
    "bench_train",
    "bench_unknown",
    "compare",
    "measure",
    "measure_all",
    "page",
    "read",
    "source_rows",
    "tune_unknown",
]
