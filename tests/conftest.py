"""Settings of every test: on the CPU, in float64, quickly compiled, and strict about shapes."""

import ctypes
import gc
import os
import sys
import time
from pathlib import Path

# before NumPy is there: its threads wait for cores that another worker's have
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jaxlib
import psutil

os.environ.setdefault("JAX_PLATFORMS", "cpu")
if jaxlib.__version__.startswith("0.10."):  # a flag that a jaxlib does not know ends the process
    # tests compile far longer than they compute: this halves the time of the suite
    quick = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
    one_piece = "--xla_cpu_parallel_codegen_split_count=1"  # a library a program: less to compile and to map
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {quick} {one_piece}"

import jax
import pytest
from jaxtyping import install_import_hook

# the shapes and types that functions declare are checked where arrays are computed
ROOMS = (
    "compute.linalg",
    "compute.jaxprs",
    "systems",
    "control",
    "simulation",
    "dataset",
    "learning",
    "evaluation",
    "extensions",
)
install_import_hook([f"lqrlab.{room}" for room in ROOMS], "typecheck.checked")

from lqrlab import compute  # noqa: E402  (after the hook)
from lqrlab.systems import families, plant_files  # noqa: E402

compute.setup()
jax.config.update("jax_numpy_rank_promotion", "raise")  # (64, 1) - (64,) is a bug, not a matrix
jax.config.update("jax_numpy_dtype_promotion", "strict")  # float32 meeting float64 is a conversion that was forgotten


ONE_PROCESS = 2e9  # bytes that a worker may take: beyond it, programs are dropped
MOST_SECONDS = 120  # of the processor that one test may take, on any machine; in `make test` they take 20 at most
HERE = Path(__file__).parent
LONGEST = ("notebooks", "learning", "identification", "problem", "learning_loops", "dataset_generation", "benchmarks")
LONGEST += ("constrained_lqr", "docs", "environments", "browser", "unknown", "look_ahead", "robust_stability")
"""Files that take longest, which begin first: the workers then end together."""
EACH = {
    "test_changes_are_limited_from_sample_to_sample",
    "test_the_optima_of_a_scalar_plant",
    "test_inputs_are_those_of_the_textbooks_recursion_within_limits",
    "test_weights_on_the_rim_and_diagonal_weights_are_found",
    "test_a_step_whose_measurement_is_missing_teaches_nothing_and_the_loop_is_regulated_on",
    "test_one_step_in_a_record_is_enough_for_a_model",
    "test_an_episode_that_ends_begins_anew_and_shows_its_last_observation",
    "test_a_cart_pole_written_as_a_robot_is_that_of_the_catalogue",
    "test_command_and_two_controllers_in_one_program",
    "test_an_agent_is_given_scaled_states_and_its_actions_are_shares_of_the_limits",
}
"""A test of each extension that ``make test`` runs too."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """The suites of extensions and tools are of the matrix, but for one test of each extension."""
    for item in items:
        inside = item.path.is_relative_to(HERE / "extensions") or not item.path.is_relative_to(HERE)
        if inside and getattr(item, "originalname", None) not in EACH:
            item.add_marker(pytest.mark.matrix)
    names = [f"test_{name}.py" for name in LONGEST]
    items.sort(key=lambda item: names.index(item.path.name) if item.path.name in names else len(names))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """A test may take so many seconds of the processor: those on the clock say how busy a machine is."""
    begin = time.process_time()
    result = yield
    taken, most = time.process_time() - begin, item.get_closest_marker("processor")
    assert taken < (most.args[0] if most else MOST_SECONDS), f"it took {taken:.0f} s of the processor"
    return result


def pytest_collection_finish():
    """What was imported stays to the end: the garbage collector need not look through it again and again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """``-n auto``: a worker a core, but no more than there is memory for."""
    return max(1, min(len(os.sched_getaffinity(0)), int(psutil.virtual_memory().available / ONE_PROCESS)))


def give_back():
    """Compiled programs, and the pages that they leave behind."""
    jax.clear_caches()
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)


def mappings() -> int:
    """Pieces of memory that this process has mapped; Linux allows 65,530."""
    maps = Path("/proc/self/maps")
    return len(maps.read_bytes().splitlines()) if maps.exists() else 2**16


@pytest.fixture(autouse=True, scope="module")
def programs_are_given_back():
    """Compiled programs of a whole run are more than a process may hold, or map into memory: XLA crashes then."""
    yield
    if mappings() > 30_000 or in_use() > 0.5 * ONE_PROCESS:
        give_back()


@pytest.fixture
def catalogue_as_before(monkeypatch):
    """Families that a test enters, and files and packages that it looks for them in, are forgotten after it."""
    monkeypatch.setattr(families, "FAMILIES", dict(families.FAMILIES))
    monkeypatch.setattr(plant_files, "_entered", {"files": "", "packages": "none"})
    monkeypatch.setenv("LQRLAB_PLANTS", "")


def in_use() -> int:
    """Bytes of memory that this process holds."""
    return psutil.Process().memory_info().rss


limit = 0.7 * ONE_PROCESS


@pytest.fixture(autouse=True)
def memory_is_bounded():
    """Programs of one file are gigabytes too."""
    global limit
    yield
    if in_use() > limit:
        give_back()
        limit = max(limit, in_use() + 0.2 * ONE_PROCESS)  # what stays is not asked for after each test


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    """pytest collects garbage five times at its end, which takes long beside a full heap: execnet interrupts a worker
    that is not over after five seconds, wherever it is, and what the interrupt meets there is blamed on the tests."""
    if hasattr(session.config, "workerinput"):
        give_back()
        gc.freeze()  # nothing is left to be collected
