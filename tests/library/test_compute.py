"""compute.compile, the backend's settings and the debugging switches, against what Python and NumPy do."""

import dataclasses
import functools
import gc
import time
import warnings
from unittest import mock

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import scipy.linalg
import scipy.sparse
import scipy.stats
from refusals import refused

from lqrlab import compute, dataset, learning, systems
from lqrlab.compute import checks, debugging, pytree
from lqrlab.compute.linalg import batch_last
from lqrlab.evaluation import regions
from lqrlab.extensions.predictive import iterative_lqr
from lqrlab.simulation import constant_gain, loop
from lqrlab.simulation.noise import normals, random_words
from lqrlab.workbench.figures import loop_design


def test_static_arguments_tell_programs_apart_by_value_and_type():
    traced = []

    @compute.compile(static=("spec", "scale"))
    def weigh(x, spec, scale=1):
        traced.append((spec, scale))
        return x * sum(spec) * scale

    for _ in range(2):
        np.testing.assert_array_equal(weigh(jnp.ones(2), (2, 3)), [5, 5])
    assert len(traced) == 1
    np.testing.assert_array_equal(weigh(jnp.ones(2), spec=(2, 3, 4)), [9, 9])
    # alike for Python's ==, not for a program
    with jax.numpy_dtype_promotion("standard"):
        kinds = [weigh(jnp.ones(2, jnp.int32), (1,), scale).dtype.name for scale in (2, 2.0, True)]
    assert kinds == ["int32", "float64", "int32"]
    assert [type(s) for _, s in traced[-3:]] == [int, float, bool]
    for bad in (jnp.ones(2), [1], (1, [2])):
        refused(r"weigh: expected of the static arguments \['spec', 'scale'\].*a tuple", weigh, jnp.ones(2), bad)


def a_branch(x):
    if x.sum() > 0:  # this very line
        return x
    return -x


@pytest.mark.parametrize(
    ("fn", "error"),
    [
        (a_branch, jax.errors.TracerBoolConversionError),
        (lambda x: x * float(x[0]), jax.errors.ConcretizationTypeError),  # this very line
        (lambda x: x * [1.0, 2.0][x.astype(int)[0]], jax.errors.TracerIntegerConversionError),  # this very line
        (lambda x: x[x > 1], jax.errors.NonConcreteBooleanIndexError),  # this very line
        (lambda x: x + np.sort(x), jax.errors.TracerArrayConversionError),  # this very line
    ],
)
def test_what_tracing_cannot_do_runs_eagerly_and_warns_once(fn, error):
    x = np.array([1.0, 0.5, 3.0])
    compiled = compute.compile(fn)
    with pytest.warns(compute.EagerFallbackWarning, match=f"{fn.__name__} .*{error.__name__}.*this very line") as said:
        np.testing.assert_array_equal(compiled(jnp.array(x)), fn(x))
    assert said[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(compiled(jnp.array(x[::2])), fn(x[::2]))
    assert compiled.report().programs == 0
    assert "this very line" in compiled.report().eager[0]


def test_only_the_static_choice_that_cannot_be_traced_is_eager():
    f = compute.compile(lambda x, check: x if not check or x.sum() > 0 else -x, static="check")
    with pytest.warns(compute.EagerFallbackWarning):
        f(jnp.ones(2), True)
    f(jnp.ones(2), False)
    assert f.report().programs == 1


def test_the_callers_own_errors_are_raised_as_themselves():
    @compute.compile
    def f(tree):
        return jnp.ones(3) @ tree["x"]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(KeyError, match="x"):
            f({})
        with pytest.raises(TypeError, match=r"got \(3,\) and \(4,\)"):
            f({"x": jnp.ones(4)})
    assert f.report().eager == ()
    # what running eagerly does not help either
    with pytest.warns(compute.EagerFallbackWarning), pytest.raises(jax.errors.TracerBoolConversionError):
        compute.compile(lambda x: jax.jit(a_branch)(x))(jnp.ones(2))
    for argument in ("donate", "static"):
        refused("invalid argnames.*tre", compute.compile, f, **{argument: ["tre"]})
        refused(f"{argument}: expected names of the function's arguments", compute.compile, f, **{argument: 3})
    refused("fn: expected a function, but found 3", compute.compile, 3)


def test_donated_arguments_are_gone_and_a_call_within_a_trace_does_not_count():
    f = compute.compile(lambda state, *, step: state + step, donate="state")
    for _ in range(3):
        state = jnp.ones((50, 50))
        f(state=state, step=1.0)
        assert state.is_deleted()
    inside = jax.jit(lambda x: f(x, step=0.0))
    inside(jnp.ones((2, 2))).block_until_ready()
    assert (f.report().calls, f.report().programs) == (3, 1)
    with jax.disable_jit():
        f(state=jnp.ones((40, 50)), step=1.0)
    assert (f.report().calls, f.report().programs, f.report().eager) == (4, 1, ())
    assert str(f.report()) == "<lambda>: calls 4, programs 1"


def test_each_call_that_is_timed_is_waited_for():
    class Late:
        """A result that is there a hundredth of a second after it was returned."""

        def block_until_ready(self):
            time.sleep(0.01)
            waited.append(self)

    waited = []
    timing = compute.timeit(Late, repeats=3)
    assert len(waited) == 4
    assert min(timing.first, timing.median, timing.best) >= 0.01


def test_backend_settings_hold_within_their_block():
    def products(x):
        return jax.make_jaxpr(lambda x: x @ x)(x).eqns[0].params["precision"]

    seen = []
    look = jax.jit(lambda x: seen.append(isinstance(x, jax.core.Tracer)) or jnp.log(x))
    x = jnp.ones((2, 2))
    with compute.Backend(device="cpu:0", precision="highest", jit=False).active():
        assert products(x) == (jax.lax.Precision.HIGHEST,) * 2
        assert jax.config.jax_default_device == jax.devices()[0]
        look(x)
    with compute.Backend(debug="nans").active(), pytest.raises(FloatingPointError):
        look(-x)
    look(-x)
    assert seen[0] is False
    assert seen[1] is True
    assert products(x) is None
    assert jax.config.jax_default_device is None
    assert len({compute.Backend(), compute.Backend(jit=True), compute.Backend(jit=False)}) == 2
    for name, wrong in (
        *(("jit", 1), ("debug", "nan"), ("dtype", "float16"), ("seed", 0.5), ("device", "gpu:x")),
        *(("mesh", "data"), ("mesh", "data=0"), ("mesh", "data=2,data=2"), ("mesh", "data=2,fsdp=4")),
    ):
        refused(f"^{name}: expected .*, but found {wrong!r}", compute.Backend, **{name: wrong})
    refused("mesh: expected none with the device 'cpu:0'", compute.Backend, device="cpu:0", mesh="data=2")
    whole = compute.Backend(mesh="data=1", seed=3, jit=False)
    assert compute.Backend.from_json(whole.to_json()) == whole


def test_a_backend_computes_in_the_type_that_it_names_or_says_why_not():
    assert compute.Backend(dtype="float64").compute_dtype == "float64"
    assert compute.Backend(dtype="float64", compute_dtype="float32").compute_dtype == "float32"
    refused("compute_dtype: expected bfloat16: below the range of float16", compute.Backend, compute_dtype="float16")
    words = r"dtype: expected float32, or lqrlab.compute.setup\(\) before"
    with jax.enable_x64(False), pytest.raises(ValueError, match=words), compute.Backend(dtype="float64").active():
        pass


def test_backend_puts_arrays_on_its_device_or_whole_on_its_mesh():
    tree = {"a": np.ones((2, 2))}
    assert compute.Backend().put(tree)["a"].sharding.is_fully_replicated
    assert compute.Backend(device="cpu:0").put(tree)["a"].committed
    backend = compute.Backend(mesh="data=1")
    assert backend.put(tree)["a"].sharding == jax.NamedSharding(backend.jax_mesh, jax.P())
    refused(r"mesh: 'data=64' asks for 64 devices.*cpu_devices=64", compute.Backend(mesh="data=64").put, tree)


@pytree
@dataclasses.dataclass(frozen=True)
class Pair:
    weight: jax.Array
    bias: jax.Array
    name: str = dataclasses.field(default="", metadata={"static": True})


def test_compiled_functions_take_dataclasses_on_a_mesh():
    @functools.partial(compute.compile, static="scale", donate="pair")
    def step(pair, scale):
        return jax.tree.map(lambda a: scale * a, pair)

    backend = compute.Backend(mesh="data=1")
    pair = backend.put(Pair(jnp.ones(3), jnp.zeros(()), "first"))
    for scale in (2.0, 2.0, 3.0):
        pair, old = step(pair, scale), pair
        assert old.weight.is_deleted()
    np.testing.assert_array_equal(pair.weight, [12, 12, 12])
    assert pair.weight.sharding.mesh == backend.jax_mesh
    step(Pair(jnp.ones(3), jnp.zeros(()), "second"), 3.0)
    # in another trace, with plain arguments and with the trace's
    inside = jax.jit(lambda a: step(Pair(a, a, "second"), 2.0).weight)
    assert inside(1.0) == 2
    assert (step.report().calls, step.report().programs) == (4, 3)


def test_pytrees_are_put_together_without_their_constructor_and_know_their_class():
    made = []

    @pytree
    @dataclasses.dataclass(frozen=True)
    class Checked:
        a: jax.Array
        unit: str = dataclasses.field(default="m", metadata={"static": True})

        def __post_init__(self):
            made.append(self.a)

    value = Checked(jnp.ones(2), "s")
    doubled = jax.jit(lambda v: jax.tree.map(lambda a: 2 * a, v))(value)
    assert jax.tree.map(lambda _: None, value) == dataclasses.replace(doubled, a=None)
    assert jax.tree.structure(value) == jax.tree.structure(Checked(object(), "s"))
    assert (type(doubled), doubled.unit) == (Checked, "s")
    np.testing.assert_array_equal(doubled.a, [2, 2])
    assert len(made) == 3  # those of this test, no placeholder
    assert jax.tree.structure(Checked(1.0)) != jax.tree.structure(Checked(1.0, "s"))

    @pytree
    @dataclasses.dataclass(frozen=True)
    class Other:
        a: jax.Array

    assert jax.tree.structure(Other(1.0)) != jax.tree.structure(Checked(1.0))
    ((path, _),) = jax.tree_util.tree_flatten_with_path(value)[0]
    assert jax.tree_util.keystr(path) == ".a"


def test_a_dataclass_that_jax_registered_is_not_taken_for_another():
    def factor(k):  # as a notebook's cell that is run again
        @jax.tree_util.register_dataclass
        @dataclasses.dataclass(frozen=True)
        class Factor:
            a: float

            def __call__(self, x):
                return k * self.a * x

        return Factor(1.0)

    call = compute.jit_by_function(lambda factor, x: factor(x))
    assert [float(call(factor(k), 1.0)) for k in range(120)] == [*range(120)]


def test_quick_programs_compute_the_same_also_inside_others():
    def f(x, power):
        return jnp.sin(x) ** power

    quick = compute.quick_jit(f, static_argnames="power")
    x = jnp.linspace(0, 1, 7)
    np.testing.assert_allclose(quick(x, power=3), f(x, 3), rtol=1e-14)
    np.testing.assert_allclose(jax.jit(jax.vmap(lambda x: quick(x, power=3)))(x), f(x, 3), rtol=1e-14)
    constant = jax.jit(lambda: quick(np.float64(0.5), power=1))()  # no argument shows that this is a trace
    np.testing.assert_allclose(constant, np.sin(0.5), rtol=1e-14)
    with mock.patch.object(jax, "jit", side_effect=jax.jit) as compiled:
        compute.quick_jit(lambda x: x + 1)(x)
    assert compiled.call_args.kwargs["compiler_options"]["xla_backend_optimization_level"] == 0


def test_checked_raises():
    def f(x, i):
        return x[i] / x[0], i

    x = jnp.array([2.0, 3.0])
    assert debugging.checked(f)(x, 1) == (1.5, 1)
    refused("index 5 is out of bounds for axis 0 with size 2", debugging.checked(f), x, 5)
    refused("division by zero", debugging.checked(f), 0 * x, 1)
    many = debugging.checked(jax.vmap(f, (None, 0)))
    refused("index 5 is out of bounds", many, x, jnp.array([0, 5, 1]))


def test_switches_that_print_and_log(capsys, caplog):
    inside = jax.jit(lambda tree: debugging.peek("tree", tree)["a"] * 2)
    np.testing.assert_array_equal(inside({"a": jnp.array([1.0, np.nan, 4.0])}), [2, np.nan, 8])
    jax.effects_barrier()
    assert capsys.readouterr().out == "tree['a']: float64[3] from 1 to 4, 1 of 3 NaN\n"
    with debugging.compiles():
        jax.jit(lambda x: x + 1).lower(1.0).compile()
    assert any("compilation" in r.getMessage() for r in caplog.records)


def test_training_honours_its_backend(tmp_path, monkeypatch):
    class LookedError(Exception):
        pass

    def look(_):
        names = ("jax_disable_jit", "jax_debug_nans", "jax_default_matmul_precision")
        raise LookedError(*(getattr(jax.config, name) for name in names))

    monkeypatch.setattr(learning.models, "build", look)
    model, train = learning.ModelConfig(), learning.TrainConfig()
    config = dataset.DataConfig(families=("pendulum",), held_out=(), variants=4, num_steps=20)
    sizes = {"batch_size": train.batch_size, "window": model.window}
    source = dataset.source(dataset.generate(config, tmp_path / "data"), **sizes)
    backend = compute.Backend(precision="highest", jit=False, debug="nans")
    with pytest.raises(LookedError) as looked:
        learning.fit(source, model, train, tmp_path, backend=backend)
    assert looked.value.args == (True, True, "highest")


def test_words_are_jaxs_and_normals_are_normal_and_independent():
    key = jax.random.key_data(jax.random.key(7))
    first, second = (jnp.arange(1000, dtype=jnp.uint32) * jnp.uint32(4294967) + i for i in range(2))
    expected = jax.extend.random.threefry_2x32(key, jnp.concatenate([first, second]))
    np.testing.assert_array_equal(jnp.concatenate(random_words(key, first, second)), expected)
    rows, columns = (jnp.arange(size, dtype=jnp.uint32) for size in (500, 400))
    z = np.asarray(normals(key, rows[:, None], columns[None]))
    assert scipy.stats.kstest(z.ravel(), "norm").pvalue > 1e-3
    assert abs(scipy.stats.kurtosis(z.ravel())) < 6 * np.sqrt(24 / z.size)
    for a, b in ((z[:, 1:], z[:, :-1]), (z[1:], z[:-1])):  # neighbours in either direction
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 6 / np.sqrt(z.size)


def test_programs_of_functions_that_nobody_holds_any_more_are_forgotten():
    def programs():
        gc.collect()
        return len(jax.extend.backend.get_backend().live_executables())

    compiled, before = compute.jit_by_function(lambda f, x: f(x)), programs()
    for i in range(30):
        assert float(compiled(jax.tree_util.Partial(lambda x, i=i: i * x), np.float64(1.0))) == i
    assert programs() - before == compiled.kept().currsize == 16


@pytest.mark.parametrize(
    "compiled",
    [
        *(systems.custom.Function.dynamics, systems.custom.Function.matrices, loop._run),
        *(constant_gain._PROGRAMS[False], regions._advance, iterative_lqr._solve, loop_design._rollout),
    ],
)
def test_whatever_takes_a_plant_of_a_users_function_forgets_it(compiled):
    assert compiled.kept().maxsize == 16


def test_a_schedulers_processes_are_asked_for_an_address_and_the_first_listens_there_alone(monkeypatch):
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    monkeypatch.delenv("JAX_COORDINATOR_ADDRESS", raising=False)
    refused("JAX_COORDINATOR_ADDRESS: expected host:port of process 0", compute.join)
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "10.0.0.7:4711")
    with mock.patch("jax.distributed.initialize") as initialize:
        compute.join()
    assert initialize.call_args.kwargs["coordinator_bind_address"] == "10.0.0.7:4711"


def test_cholesky_of_many_is_scipys_with_pivots_that_are_none_left_out_or_raised():
    cholesky, rng = jax.jit(batch_last.cholesky), np.random.default_rng(0)
    X = rng.normal(size=(5, 6, 40)) * 10.0 ** rng.uniform(-3, 3, (5, 1, 40))
    L = np.asarray(cholesky(jnp.einsum("ikw,jkw->ijw", X, X)))
    for w in range(40):
        np.testing.assert_allclose(L[..., w], scipy.linalg.cholesky(X[..., w] @ X[..., w].T, lower=True), rtol=1e-8)
    half = np.zeros((3, 3, 1))
    half[[0, 2], [0, 2]] = 4.0
    np.testing.assert_array_equal(cholesky(jnp.asarray(half))[..., 0], np.diag([2.0, 0.0, 2.0]))
    # of a sum of costs whose least eigenvalue is known: one random system in a million stopped a training
    W = np.array([[4.0, 1e-3, 0.0], [1e-3, -1e-3, 0.0], [0.0, 0.0, 0.0]])
    L = cholesky(jnp.asarray(W, jnp.float32)[..., None], jnp.full((1, 1), 2.5e-3, jnp.float32))
    np.testing.assert_allclose(L[..., 0], [[2, 0, 0], [5e-4, 0.05, 0], [0, 0, 0.05]], rtol=1e-6)


def test_one_place_says_what_a_number_is():
    table, second = np.array([[1.0, 2.0], [3.0, 4.0]]), np.timedelta64(1, "s")
    frame = pd.DataFrame(table)
    same = table.astype(">f8"), table.astype(">i4"), table.astype(np.longdouble), table.astype(np.float16)
    for good in (*same, frame, np.ma.array(table), table.tolist(), jnp.asarray(table)):
        found = checks.real("A", good)
        assert found.dtype.isnative
        assert found.dtype.itemsize <= 8
        np.testing.assert_array_equal(jnp.asarray(found), table)
    rows = [np.ma.array([1.0, 2.0], mask=[False, True]), [3.0, 4.0]]
    refused("A: expected numbers, but found 1 masked", checks.real, "A", rows)
    objects = frame.astype("Float64").mask(frame > 3), scipy.sparse.eye(2), [1.0, True], [[1], []]
    for bad in (*objects, second, [second], b"1"):
        refused("A: expected real numbers, but found", checks.real, "A", bad)
    for check, value in ((checks.number, second), (checks.whole, second), (checks.number, "1"), (checks.whole, True)):
        refused("A: expected a", check, "A", value)
    refused("A: expected finite numbers ≥ 0, but found nan", checks.real, "A", [0.0, np.nan], finite=True, low=0)
    refused("A: expected finite numbers, but found -inf", checks.real, "A", [0.0, -np.inf], finite=True)
    refused("A: expected numbers ≥ 0, but found -1.0", checks.real, "A", [0.0, -1.0], low=0)
    refused("A: expected numbers ≥ 0, but found nan", checks.real, "A", np.nan, low=0)
    assert checks.real("A", [np.inf, 0], low=0).tolist() == [np.inf, 0]
    assert jax.jit(lambda a: checks.real("A", a, finite=True, low=0))(np.nan).dtype == float
