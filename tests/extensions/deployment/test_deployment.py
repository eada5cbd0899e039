"""Controllers as C: the same numbers, clean code without a library, on the target too."""

import dataclasses
import functools
import re
import shutil
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from click.testing import CliRunner
from refusals import refused

import lqrlab
from lqrlab import classical, control, deployment, learning, predictive, simulation, systems, tuning, unknown
from lqrlab.compute import pytree
from lqrlab.extensions.deployment import c_files
from lqrlab.extensions.deployment.export_command import export
from lqrlab.extensions.deployment.exported_step import ExportedStep
from lqrlab.simulation.memory_policies import measure

STRICT = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Wconversion", "-Wdouble-promotion", "-Werror"]
PLANT = systems.make("cart_pole")
LIMITS = (-8.0, 8.0)
SEEN = np.eye(4)[:2]
pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")


def run(*command: object, **options: object) -> subprocess.CompletedProcess:
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, timeout=100, **options)


@functools.cache
def problem() -> simulation.Problem:
    return simulation.Problem.of(PLANT, limits=LIMITS)


@jax.tree_util.register_static
class Pid:
    """A user's own policy: PID on the pole's angle, the integral limited, its measurement guarded."""

    def init(self, batch_shape):
        return jnp.zeros((*batch_shape, 2)), jnp.zeros(batch_shape, int)

    def __call__(self, carry, x):
        (memory, steps), angle = carry, simulation.measured_or(carry[0][..., 1], x[..., 1])
        total = jnp.clip(memory[..., 0] + angle * 0.02, -0.1, 0.1)
        rate = jnp.where(steps > 0, (angle - memory[..., 1]) / 0.02, 0.0)
        u = 60 * angle + 30 * total + 8 * rate + 2 * jnp.tanh(x[..., 0]) + 3 * x[..., 2]
        return (jnp.stack([total, angle], -1), steps + 1), u[..., None]


def read(x):
    return x[..., 1:2]


@functools.cache
def controllers() -> dict[str, tuple[object, simulation.Problem]]:
    """One of each kind, with the problem that it is for."""
    p, limited = problem().limited(None), problem()
    A, B, Q, R, N = control.discretize(*PLANT.matrices(), *PLANT.weights(), PLANT.dt)
    noise = (1e-4 * np.eye(4), 1e-4 * np.eye(2))
    delayed = control.lqrd_delayed(*PLANT.matrices(), *PLANT.weights(), PLANT.dt, delay=1.5)
    half = simulation.Problem.of(PLANT, dt=PLANT.dt / 2)
    plan = control.finite_horizon(A, B, Q, R, 30, N=N, Qf=p.P)
    angles = np.linspace(-0.3, 0.3, 5)  # linearised about leaning poles
    points = np.stack([np.zeros(5), angles, np.zeros(5), np.zeros(5)], -1)
    stiffer = np.linspace(1, 1.1, 5)[:, None, None]
    models = (np.asarray(a) * stiffer for a in PLANT.matrices())
    schedule = tuning.gain_schedule(
        [angles], *models, *PLANT.weights()[:2], points=(points, np.zeros((5, 1))), dt=PLANT.dt
    )
    gain = simulation.LinearPolicy(p.K)
    kalman = (p, SEEN, *noise, 1e-3 * np.eye(4))
    return {
        "gain": (p.K, limited),
        "lqg": (control.lqg(A, B, SEEN, Q, R, *noise, N, discrete=True), limited),
        "lqg_filter": (control.lqg(A, B, SEEN, Q, R, *noise, N, discrete=True, form="filter"), limited),
        "lqi": (control.lqi(A, B, [[1.0, 0, 0, 0]], Q, R, Q[:1, :1], N, discrete=True), limited),
        "delayed": (simulation.delayed(PLANT, delayed, 1.5, ticks=2, limit=8.0), half),
        "plan": (plan, p),
        "schedule": (tuning.scheduled(PLANT, schedule, read), limited),
        "held": (simulation.DelayedPolicy(gain, 3, 0, jnp.array([jnp.inf]), memory=0), p),
        "late": (simulation.DelayedPolicy(gain, 1, 1, jnp.array([jnp.inf]), memory=1), p),
        "switching": (predictive.SwitchingPolicy(Pid(), gain, p.P, jnp.asarray(0.5)), limited),
        "pid": (Pid(), limited),
        "ekf": (simulation.extended_kalman(gain, *kalman), p),
        "ukf": (simulation.unscented_kalman(gain, *kalman), p),
    }


NAMES = [
    *("gain", "lqg", "lqg_filter", "lqi", "delayed", "plan", "schedule"),
    *("held", "late", "switching", "pid", "ekf", "ukf"),
]


@pytest.fixture(scope="session")
def exported(tmp_path_factory):
    """The folder of each kind, written once."""
    root = tmp_path_factory.mktemp("c")

    @functools.cache
    def folder(name: str) -> Path:
        return deployment.to_c(*controllers()[name], root / name)

    return folder


def loop(name: str, num_steps: int) -> tuple[ExportedStep, np.ndarray]:
    """Absolute measurements of a disturbed loop of JAX's controller."""
    controller, p = controllers()[name]
    step, scale = ExportedStep.of(controller, p), np.asarray(p.scale_x)
    made = simulation.rollout(
        p, controller, 0.05 * scale, num_steps, key=jax.random.key(1), noise=1e-3 * scale, keep=("xs",)
    )
    xs = made.xs[:-1]
    return step, np.asarray(xs if step.sensor is None else measure(step.sensor, xs)) + step.y_eq


def apart(name: str, folder: Path, num_steps: int, single: bool) -> float:
    """Largest difference of inputs and memories between C and JAX, relative to the largest value of each."""
    step, ys = loop(name, num_steps)
    assert np.isfinite(ys).all()
    library = deployment.load_c(folder, single=single)
    memories, us = library.run(ys)
    expected, us_expected = step.run(ys)
    worst = np.abs(us - us_expected).max() / np.abs(us_expected).max()
    at, real = 0, np.dtype(library.dtype)
    for a in expected.values():
        kind = {"f": real, "i": np.dtype(np.int64), "b": np.dtype(bool)}[a.dtype.kind]
        at = -(-at // kind.itemsize) * kind.itemsize
        size = max(int(np.prod(a.shape[1:])), 1)
        found = memories[:, at : at + size * kind.itemsize].copy().view(kind).reshape(len(us), -1)
        at += size * kind.itemsize
        wanted = a.reshape(len(us), -1).astype(float)
        if a.size:
            worst = max(worst, np.abs(found - wanted).max() / (np.abs(wanted).max() or 1))
    return float(worst)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_numbers_memory_included(name, exported):
    assert apart(name, exported(name), 1000, False) <= 1e-12
    assert apart(name, exported(name), 1000, True) <= 1e-5


def test_a_gain_and_an_lqg_design_against_numpy(exported):
    """Nothing here is shared with the translator: the textbook's formulas, step by step."""
    K, p = np.asarray(problem().K), problem()
    random = np.random.default_rng(0)
    ys = random.normal(size=(50, 4))
    _, us = deployment.load_c(exported("gain")).run(ys)
    np.testing.assert_allclose(us[:, 0], np.clip(-ys @ K[0], *LIMITS), rtol=1e-13)
    design = controllers()["lqg"][0]
    A, B, C, D = (np.asarray(getattr(design, name)) for name in "ABCD")
    G = np.asarray(p.B)
    z, expected, ys = np.zeros(4), [], 0.3 * random.normal(size=(50, 2))
    for y in ys:
        u = C @ z + D @ y
        v = np.clip(u, *LIMITS)
        z = A @ z + B @ y + G @ (v - u)
        expected.append(v)
    _, us = deployment.load_c(exported("lqg")).run(ys)
    np.testing.assert_allclose(us, expected, rtol=1e-11, atol=1e-12)
    assert (np.abs(us) == 8).any()


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize(
    "name", ["gain", "lqg_filter", "switching", "lqi", "delayed", "schedule", "held", "ekf", "ukf"]
)
def test_code_is_clean_and_repeats_its_vectors(name, compiler, exported, tmp_path):
    if shutil.which(compiler) is None:
        pytest.skip(f"needs {compiler}")
    folder = exported(name)
    for size in ([], ["-DCONTROLLER_FLOAT"]):
        options = [*STRICT, *size, "-g", "-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
        sources = [folder / "controller.c", folder / "main_test.c"]
        done = run(compiler, *options, *sources, "-lm", "-o", tmp_path / "test")
        if compiler == "clang" and "libclang_rt" in done.stderr:  # its sanitizers are not installed
            done = run(compiler, *STRICT, *size, *sources, "-lm", "-o", tmp_path / "test")
        assert done.returncode == 0, done.stderr[:2000]
        done = run(tmp_path / "test", folder / "test_vectors.csv")
        assert (done.returncode, done.stderr) == (0, ""), done.stdout[-500:]
    rows = (folder / "test_vectors.csv").read_text().splitlines()
    at = sum(bool(re.match(r"y\d", name)) for name in rows[0].split(","))  # the first input, after what is measured
    cells = rows[20].split(",")
    cells[at] = repr(float(cells[at]) + 0.1)
    (tmp_path / "altered.csv").write_text("\n".join([*rows[:20], ",".join(cells), *rows[21:]]) + "\n")
    assert run(tmp_path / "test", tmp_path / "altered.csv").returncode == 1
    assert run(tmp_path / "test", tmp_path / "missing.csv").returncode == 2


@pytest.mark.parametrize("name", ["gain", "lqi", "ekf"])
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_no_heap_and_no_library_but_mathematics(name, compiler, exported, tmp_path):
    if shutil.which(compiler) is None:
        pytest.skip(f"needs {compiler}")
    for level in ("-O2", "-Os"):
        run(compiler, "-std=c99", level, "-c", exported(name) / "controller.c", "-o", tmp_path / "x.o")
        undefined = {line.split()[-1] for line in run("nm", "-u", tmp_path / "x.o").stdout.splitlines()}
        assert undefined <= {"sin", "cos", "sqrt", "tanh", "sincos", "_GLOBAL_OFFSET_TABLE_"}
    text = (exported(name) / "controller.c").read_text()
    assert not re.search(r"malloc|alloca|#include <(?!math|std(bool|int))", text)


def test_what_is_not_finite_does_as_in_jax(exported):
    """An estimator goes on; a delayed input is sent again; a plain gain says NaN."""
    for name in ("lqg", "ekf", "late", "gain"):
        step, ys = loop(name, 30)
        ys[0], ys[10, 0], ys[11] = np.nan, np.inf, np.nan  # the first call too
        _, us = deployment.load_c(exported(name)).run(ys)
        _, expected = step.run(ys)
        np.testing.assert_allclose(us, expected, rtol=1e-9, atol=1e-12)
        assert np.isfinite(us[12:]).all()
        assert np.isfinite(us).all() == (name != "gain")


def test_halves_are_rounded_to_even_and_away_from_zero(tmp_path):
    ways = jax.lax.RoundingMethod.TO_NEAREST_EVEN, jax.lax.RoundingMethod.AWAY_FROM_ZERO
    halves = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5])
    rounds = by(lambda x: jax.lax.round(x[:1], ways[0]) + jax.lax.round(x[1:2], ways[1]) / 10)
    us, _ = both(rounds, problem(), tmp_path, np.tile(halves[:, None], 4))
    np.testing.assert_allclose(us[:, 0], np.rint(halves) + np.sign(halves) * np.ceil(np.abs(halves)) / 10)


def both(controller: object, p: simulation.Problem, folder: Path, ys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Inputs that the controller gives as C, and in JAX."""
    library, step = deployment.load_c(deployment.to_c(controller, p, folder)), ExportedStep.of(controller, p)
    return library.run(ys)[1], step.run(ys)[1]


@pytest.mark.parametrize("sizes", [{"kind": "mlp"}, {"kind": "transformer", "heads": 2}], ids=str)
def test_networks(sizes, tmp_path):
    network = learning.models.build(learning.ModelConfig(window=3, width=8, hidden=8, depth=1, **sizes))
    us, expected = both(network, problem(), tmp_path, 0.1 * np.random.default_rng(0).normal(size=(200, 4)))
    assert np.abs(us - expected).max() <= 1e-12 * np.abs(expected).max() > 0


def test_the_adaptive_regulator_as_far_as_its_rounding_allows(tmp_path):
    """Its regression multiplies rounding by 10⁸ in some steps: a last digit of the measurements moves JAX as much."""
    policy = unknown.adaptive(problem(), unknown.wide())
    ys = 0.05 * np.random.default_rng(0).normal(size=(100, 4))
    us, expected = both(policy, problem(), tmp_path, ys)
    _, moved = ExportedStep.of(policy, problem()).run(ys * (1 + 2.3e-16))
    size = np.abs(expected).max()
    assert np.abs(us - expected)[:3].max() <= 1e-12 * size
    assert np.abs(us - expected).max() <= max(1e-12 * size, 100 * np.abs(moved - expected).max())


@pytest.mark.parametrize("limits", [{}, {"x": (-3.0, 3.0)}], ids=["inputs", "states"])
def test_mpc(limits, tmp_path):
    """The project's own solver, against the policy that the library has."""
    p = simulation.Problem.of(PLANT, linear=True)
    design = predictive.mpc(p.limited(simulation.Limits(u=(-4.0, 4.0), **limits)), 6)
    made = simulation.rollout(p, design, jnp.array([0.3, 0.2, 0.0, 0.0]), 200, key=jax.random.key(0), noise=1e-2)
    us, expected = both(design, p, tmp_path, np.asarray(made.xs[:-1]))
    np.testing.assert_allclose(us, expected, atol=1e-9 * 4)
    assert (np.abs(us) > 3.999).any()


def test_controllers_that_c_cannot_be_are_refused_and_nothing_is_written(tmp_path):
    p = problem()
    many = simulation.Problem.of(systems.sample("pendulum", key=jax.random.key(0), num=2))
    unbounded = by(lambda x: jax.lax.while_loop(lambda u: jnp.abs(u[0]) > 1, lambda u: u / 2, x[:1]))
    for controller, problem_, words in (
        (many.K, many, r"problem: expected one plant.*batch of shape \(2,\)"),
        (p.K, p.scaled(), "SI units"),
        (p.K * jnp.nan, p, r"NaN in LinearPolicy\.K"),
        (by(lambda x: jnp.sort(x)[:1]), p, "primitive sort"),
        (unbounded, p, "primitive while"),
        (by(lambda x: -x[:1], jnp.uint8(3)), p, "whole numbers of 32 or 64 bits, but found uint8"),
    ):
        refused(words, deployment.to_c, controller, problem_, tmp_path / "a")
    assert not (tmp_path / "a").exists()
    for name in ("thesis.tex", "controller.h"):
        (folder := tmp_path / name.partition(".")[0]).mkdir()
        (folder / name).write_text("mine")
        refused(f"holds {name}; name another folder", deployment.to_c, p.K, p, folder)


def test_folders_and_problems_that_no_code_fits_are_refused(tmp_path, monkeypatch):
    refused(r"has no controller\.h", deployment.load_c, tmp_path)
    folder = deployment.to_c(problem().K, problem(), tmp_path / "c")
    (folder / "a.out").write_text("built")
    deployment.to_c(2 * problem().K, problem(), folder)  # what it wrote it may write again, and builds stay
    assert (folder / "a.out").read_text() == "built"
    back = deployment.load_c(folder)
    for other, words in (
        (systems.make("pendulum"), "is for 4 states and 1 inputs, but pendulum has 2 and 1"),
        (simulation.Problem.of(PLANT, dt=0.05), "sample time of the exported controller"),
    ):
        refused(words, simulation.bind, back, other)
    header = (folder / "controller.h").read_text()
    for change, new, words in (
        ("DT .*?/", "DT -0.02 /", "CONTROLLER_DT: expected a sample time above 0"),
        ("DT .*?/", "DT 1e400 /", "CONTROLLER_DT: expected a"),
        ("NUM_MEASURED 4", "NUM_MEASURED -4", "expected measurements and inputs in controller.h, but found -4 and 1"),
        (r"U_EQUILIBRIUM \{.*", "U_EQUILIBRIUM {1e400}", "its equilibrium: expected finite"),
        ("CONTROLLER_H", "\udcff", "does not compile"),
    ):
        edited = re.sub(change, new, header)
        (folder / "controller.h").write_bytes(edited.encode(errors="surrogateescape"))
        refused(words, deployment.load_c, folder)
    (folder / "controller.h").write_text(header)
    (folder / "controller.c").write_text("")
    refused("its C code cannot be called: .*controller_", deployment.load_c, folder)
    (folder / "controller.c").write_text("int x = ;\n")
    refused("does not compile", deployment.load_c, folder)
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(RuntimeError, match="CC names no-such-compiler, which is not there"):
        deployment.load_c(folder)
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match=r"needs a C compiler.*apt install gcc"):
        deployment.load_c(folder)


def by(f, memory=None) -> object:
    """A policy whose memory stays as it is, of a function of one state."""

    @jax.tree_util.register_static
    class Answers:
        def init(self, batch_shape):
            return memory

        def __call__(self, carry, x):
            return carry, f(x) if x.ndim == 1 else jnp.zeros((*x.shape[:-1], 1))

    return Answers()


@pytree
@dataclasses.dataclass(frozen=True)
class Plan:
    """A user's policy whose plan is called u, as C calls the inputs; it counts, and keeps a phase within one."""

    K: jax.Array
    u: jax.Array

    def init(self, batch_shape):
        return {"y": jnp.zeros(batch_shape, int), "phase": jnp.zeros(batch_shape)}

    def __call__(self, carry, x):
        def halved(state):
            return state[0] + 1, state[1] / 2

        at = jnp.minimum(carry["y"], len(self.u) - 1)
        _, small = jax.lax.while_loop(
            lambda state: (state[0] < 12) & jnp.any(jnp.abs(state[1]) > 0.01), halved, (jnp.zeros((), int), x)
        )
        after = {"y": carry["y"] + 1, "phase": jnp.fmod(carry["phase"] + 0.05, 1.0)}
        return after, -(small @ self.K.mT) + self.u[at][..., None] + carry["phase"][..., None]


def test_names_like_those_of_the_code_and_remainders_by_one_and_loops_with_two_conditions(tmp_path):
    policy = Plan(jnp.ones((1, 4)), jnp.sin(jnp.arange(40.0)))
    ys = np.random.default_rng(0).normal(size=(60, 4))
    us, expected = both(policy, problem(), tmp_path, ys)
    np.testing.assert_allclose(us, expected, atol=1e-12)
    halved = np.array([y / 2 ** next(k for k in range(13) if k == 12 or np.abs(y / 2**k).max() <= 0.01) for y in ys])
    wanted = -halved.sum(1) + np.sin(np.minimum(np.arange(60), 39)) + (0.05 * np.arange(60)) % 1
    off = np.abs(us[:, 0] - wanted)
    assert np.minimum(off, np.abs(off - 1)).max() < 1e-9  # a phase of 1 − 1e-16 is one of 0


def test_an_unstable_loop_is_exported_with_a_warning(tmp_path):
    with pytest.warns(UserWarning, match="the loop with cart_pole diverges"):
        deployment.to_c(-problem().K, simulation.Problem.of(PLANT, linear=True), tmp_path)


def test_names_are_identifiers_and_comments_stay_comments(tmp_path):
    """A memory named by a keyword, a plant by the end of a comment."""

    @jax.tree_util.register_static
    class Named:
        def init(self, batch_shape):
            return {"int": jnp.zeros(2), "a b/*": jnp.zeros(()), "ü": jnp.zeros((), bool)}

        def __call__(self, carry, x):
            carry = {"int": x[..., :2], "a b/*": x[..., 0], "ü": x[..., 0] > 0}
            return carry, x[..., :1]

    evil = type("Evil", (type(PLANT),), {"name": 'cart */ int main() { return "'})
    plant = evil(**{k: v for k, v in vars(PLANT).items() if not k.startswith("_")})
    folder = deployment.to_c(Named(), simulation.Problem.of(plant), tmp_path)
    done = run("gcc", *STRICT, "-c", folder / "controller.c", "-o", tmp_path.parent / "x.o")
    assert done.returncode == 0, done.stderr


def test_command_and_two_controllers_in_one_program(tmp_path, monkeypatch):
    """An LQR and a network in one program, LQG against the textbook's recursion; README's lines as they are typed."""
    monkeypatch.chdir(tmp_path)
    x, p, own = 0.1 * np.random.default_rng(0).normal(size=4), simulation.Problem.of(PLANT), ["--plant", "cart_pole"]
    for word, options in (("cart_pole", ["--limit", "5"]), ("lqg", own), ("network", own)):
        done = CliRunner().invoke(export, [word, "-o", word, "--name", word, *options])
        assert done.exit_code == 0, done.output
        texts = [Path(word, name).read_text() for name in (f"{word}.h", "README.md")]
        words = (
            {"cart_pole": "LQR", "lqg": "LQG", "network": "network regulator"}[word] + " for cart_pole",
            "cart_mass = 0.5 kg",
            "diag[4, 25, 1, 0.444444]",
            "angle [rad]",
        )
        assert all(one in text for text in texts for one in (*words, lqrlab.__version__, "0.02 s"))
        assert all(f"{verb} {words[0]}" in done.output for verb in ("designing", f"wrote {word}:"))
        typed = run("bash", "-c", re.search(r"```sh\n(.*?)```", texts[1], re.DOTALL)[1], cwd=word)
        rows = np.genfromtxt(Path(word, "test_vectors.csv"), delimiter=",", names=True)
        np.testing.assert_allclose(np.array(typed.stdout.split(), float), rows["u0"][:3], rtol=1e-8)
    pid = classical.PID(*map(jnp.asarray, (2.0, 1.0, 0.5, 0.1, 1.0, 0.0, 1.0)), C=SEEN[:1], dt=jnp.asarray(0.02))
    about = c_files.facts(ExportedStep.of(lambda _: pid, p), None)["controller"]
    assert re.search("PID: u = kp.*; kp = 2, ki = 1, kd = 0.5, filter_time = 0.1 s", about)
    assert re.search(r"limits \| force -5 … 5 N[^§]*\[N\] \| 0 \| -5 … 5 ", Path("cart_pole", "README.md").read_text())
    A, B = map(np.asarray, p.sampled[:2])
    W, V = (np.diag([(0.01 * s.scale) ** 2 for s in some]) for some in (PLANT.states, PLANT.outputs))
    P = scipy.linalg.solve_discrete_are(A.T, SEEN.T, W, V)
    ys, z, wanted = np.random.default_rng(1).normal(size=(9, 2)), np.zeros(4), []
    for y in ys:
        wanted.append(-np.asarray(p.K) @ z)
        z = A @ z + B @ wanted[-1] + A @ P @ SEEN.T @ np.linalg.solve(SEEN @ P @ SEEN.T + V, y - SEEN @ z)
    np.testing.assert_allclose(deployment.load_c("lqg").run(ys)[1], wanted, rtol=1e-9)
    parts = [f"{name}_t {name}; {name}_init(&{name}); {name}_step(&{name}, y, u);" for name in ("cart_pole", "network")]
    show = ' printf("%.17g\\n", u[0]);\n'
    Path("main.c").write_text(
        '#include <stdio.h>\n#include "cart_pole/cart_pole.h"\n#include "network/network.h"\n'
        f"int main(void) {{ double y[] = {{{', '.join(map(str, x))}}}, u[1];\n{show.join([*parts, ''])} return 0; }}\n"
    )
    sources = "cart_pole/cart_pole.c", "network/network.c", "main.c"
    assert run("gcc", "-std=c99", "-Wall", "-Werror", *sources, "-lm", "-o", "both").stderr == ""
    gains = [p.K, simulation.bind(learning.pretrained("regulator"), p).K]
    expected = [np.clip(-(np.asarray(K) @ x)[0], *limit) for K, limit in zip(gains, ((-5, 5), (-np.inf, np.inf)))]
    np.testing.assert_allclose(np.array(run("./both").stdout.split(), float), expected, rtol=1e-6)


def test_names_and_controllers_that_cannot_be_exported_are_refused(tmp_path):
    for name in ("", "two words", "int", "1st", "a-b", "math", "size"):
        refused("name: expected a letter, then letters", deployment.to_c, problem().K, PLANT, tmp_path, name=name)
    np.savez(tmp_path / "K.npz", K=np.ones((1, 2)))
    for words, message in (
        (["cart_pol"], "did you mean cart_pole"),
        ([str(tmp_path)], "--plant: expected the plant"),
        (["lqx", "--plant", "cart_pole"], "CONTROLLER: expected one of lqr, lqg"),
        ([str(tmp_path / "K.npz"), "--plant", "cart_pole"], "expected a gain K of shape"),
    ):
        assert message in str(CliRunner().invoke(export, [*words, "-o", str(tmp_path / "b")]).exception)


def test_cmake_builds_it_and_runs_its_test(exported, tmp_path):
    if shutil.which("cmake") is None:
        pytest.skip("needs cmake")
    assert run("cmake", "-S", exported("lqg"), "-B", tmp_path).returncode == 0
    assert run("cmake", "--build", tmp_path).returncode == 0
    assert run("ctest", "--test-dir", tmp_path).returncode == 0
