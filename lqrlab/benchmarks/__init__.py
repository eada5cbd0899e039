"""How fast this machine is: lqrlab, NumPy, SciPy and slycot on the same problems, in turns."""

from lqrlab.benchmarks.data import bench_data, bench_regeneration
from lqrlab.benchmarks.loading import bench_large, bench_loading, source_rows
from lqrlab.benchmarks.measurement import Row, measure
from lqrlab.benchmarks.recovery import bench_recovery
from lqrlab.benchmarks.riccati import bench_control
from lqrlab.benchmarks.riccati_acceptance import acceptance
from lqrlab.benchmarks.training import bench_train

__all__ = [
    "Row",
    "acceptance",
    "bench_control",
    "bench_data",
    "bench_large",
    "bench_loading",
    "bench_recovery",
    "bench_regeneration",
    "bench_train",
    "measure",
    "source_rows",
]
