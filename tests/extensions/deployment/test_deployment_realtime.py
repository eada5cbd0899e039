"""The real-time loop: the numbers of a rollout, the timing that another clock measures, lines to plants."""

import dataclasses
import gc
import json
import os
import shutil
import socket
import struct
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lqrlab import control, deployment, identification, simulation, systems
from lqrlab.compute import pytree
from lqrlab.simulation import Problem

A = np.array([[1.0, 0.02], [0.05, 0.99]])
B = np.array([[0.0], [0.02]])
"""A linear plant that tests simulate themselves."""
START = np.array([0.3, -0.1])
plant = systems.from_dynamics(
    lambda x, u: jnp.stack([x[1], 2.5 * (x[0] - 0.2) - 0.5 * x[1] + (u[0] - 1.5)]),
    x_eq=[0.2, 0.0],
    u_eq=[1.5],
    dt=0.02,
    states=["angle [rad]", "rate [rad/s]"],
    inputs=["torque [N·m]"],
)
K = np.array([[20.0, 6.0]])
X_EQ, U_EQ = np.array([0.2, 0.0]), np.array([1.5])


def expected(num, measured=(0, 1)):
    """States and inputs, absolute, of the plant above under −K(x − x_eq), written down once more."""
    x, xs, us = START, [START], []
    for _ in range(num):
        u = U_EQ - K[:, measured] @ (x - X_EQ)[list(measured)]
        x = X_EQ + A @ (x - X_EQ) + B @ (u - U_EQ)
        xs.append(x)
        us.append(u)
    return np.array(xs), np.array(us)


class Bench:
    """A plant as an object of the user's."""

    def __init__(self, lose=(), delay=(), width=2):
        self.x, self.us, self.count, self.closed = START, [], 0, False
        self.lose, self.delay, self.width = lose, delay, width

    def measure(self):
        if self.us:
            self.x = X_EQ + A @ (self.x - X_EQ) + B @ (self.us[-1] - U_EQ)
        self.count += 1
        if self.count - 1 in self.delay:
            time.sleep(0.055)
        return None if self.count - 1 in self.lose else self.x[: self.width]

    def actuate(self, u):
        self.tidied = gc.isenabled()
        self.us.append(np.array(u))

    def close(self):
        self.closed = True


def noisy(name, **settings):
    p = systems.make(name)
    return Problem.of(p, limits=(-4.0, 4.0), **settings), 0.1 * np.arange(1, p.n + 1) / p.n


def lqg(problem, C):
    n, p = problem.n, len(C)
    return control.lqg(problem.A, problem.B, C, problem.Q, problem.R, 1e-4 * np.eye(n), 1e-4 * np.eye(p), discrete=True)


# Simulated plants ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clock", ["simulated", "real"])
@pytest.mark.parametrize("name", ["pendulum", "cart_pole", "furuta_pendulum"])
def test_it_is_a_rollout_bit_for_bit_in_simulated_time_and_in_real_time_where_no_tick_is_skipped(name, clock):
    problem, x0 = noisy(name, noise=1e-3, sensor_noise=1e-3, excitation=2.0)  # inputs are cut with what is added
    for controller in (problem.K, lqg(problem, np.eye(problem.n)[:2])):
        run = deployment.realtime(
            controller, problem, seconds=50 * float(problem.dt), x0=x0, key=jax.random.key(1), clock=clock
        )
        ref = simulation.rollout(problem, controller, x0, 50, key=jax.random.key(1))
        if not run.skipped:
            for field in ("ts", "xs", "us", "costs", "seen"):
                np.testing.assert_array_equal(getattr(run.trajectory, field), getattr(ref, field))
            np.testing.assert_array_equal(run.ys, np.asarray(ref.seen) + np.asarray(problem.x_eq))
        assert len(run.ticks) + run.skipped == run.due == 50
        assert json.loads(json.dumps(run.summary()))["misses"] == run.misses
        assert clock == "real" or (run.misses, run.skipped, run.lost) == (0, 0, 0)


def test_a_plant_moves_on_while_ticks_are_skipped():
    """A controller that blocks: the plant's input is held, and its states are those of the ticks that were taken."""
    problem = Problem.of(plant, linear=True, dt=0.01)

    @pytree
    @dataclasses.dataclass(frozen=True)
    class Blocking:
        def init(self, batch_shape):
            return jnp.zeros((), int)

        def __call__(self, carry, x):
            def wait(t):
                time.sleep(0.035 if t == 5 else 0.0)
                return np.zeros((), x.dtype)

            late = jax.pure_callback(wait, jax.ShapeDtypeStruct((), x.dtype), carry)
            return carry + 1, -jnp.asarray(K) @ x + late

    run = deployment.realtime(Blocking(), problem, seconds=0.2, x0=[0.1, 0.0])
    assert run.skipped >= 2
    assert run.misses > run.skipped  # the late sample itself too
    assert run.missed[5]
    x = np.array([0.1, 0.0])
    for tick, after, u, state in zip(
        run.ticks, [*run.ticks[1:], 20], np.asarray(run.trajectory.us), np.asarray(run.trajectory.xs)
    ):
        np.testing.assert_allclose(state, x, atol=1e-12)
        np.testing.assert_allclose(u, -K @ x, atol=1e-12)
        for _ in range(after - tick):
            x = np.asarray(problem.A) @ x + np.asarray(problem.B) @ u
    np.testing.assert_allclose(run.trajectory.xs[-1], x, atol=1e-12)
    log = identification.read(run.columns(), ["torque"], ["angle", "rate"])
    assert len(log.records) > 1  # the time jumps there
    assert sum(len(u) for u, _ in log.records) == len(run.ticks)


# Devices ------------------------------------------------------------------------------------------------------


def test_a_function_is_given_the_equilibriums_input_at_the_end():
    given = []

    def plant(u):
        given.append(None if u is None else float(u[0]))
        return np.array([0.0, 0.1, 0.0, 0.0])

    cart_pole = Problem.of(systems.make("cart_pole"))
    deployment.realtime(cart_pole.K, plant, problem=cart_pole, seconds=0.2, clock="simulated")
    assert given[0] is None
    assert given[-2] != 0
    assert given[-1] == 0


def test_an_object_with_a_clock():
    bench = Bench()
    run = deployment.realtime(K, bench, rate=50, seconds=0.4, problem=plant)
    xs, us = expected(20)
    if not run.skipped:
        np.testing.assert_allclose(run.ys, xs[:-1], atol=1e-12)
        np.testing.assert_allclose(run.us, us, atol=1e-12)
        np.testing.assert_allclose(run.trajectory.xs, xs - X_EQ, atol=1e-12)
        assert len(bench.us) == 21
    np.testing.assert_array_equal(bench.us[-1], U_EQ)  # at the end the equilibrium's
    assert bench.closed
    assert gc.isenabled()
    log = identification.read(run.columns(), ["torque"], ["angle", "rate"])
    assert log.dt == pytest.approx(0.02)
    assert [s.unit for s in (*log.inputs, *log.outputs)] == ["N·m", "rad", "rad/s"]
    np.testing.assert_array_equal(log.us, run.us)


def test_no_late_sample_is_hidden():
    """A measurement that takes 55 ms at 50 Hz: two ticks go by, and its own input is late."""
    run = deployment.realtime(K, Bench(delay=(4,)), seconds=0.3, problem=plant)
    assert run.missed[4]
    assert run.ticks[5] >= 6
    assert run.skipped >= 1
    assert run.computation[4] >= 0.055
    assert run.misses == run.missed.sum() + run.skipped
    s = run.summary()
    assert s["computation_max_us"] >= 55e3
    assert s["period_max_us"] >= 55e3
    assert f"{run.misses} deadlines missed" in str(run)
    assert len(run.figure().axes) == 2


def test_the_clock_is_kept():
    """By another clock: so many ticks take so long, and none begins before it is due."""
    begin = time.monotonic()
    run = deployment.realtime(K, lambda u: START, rate=200, seconds=0.5, problem=plant)
    took = time.monotonic() - begin
    assert run.due == 100
    assert took > 0.5
    assert (run.lateness >= 0).all()
    assert run.began[-1] <= 0.5


def test_a_measurement_that_is_lost_holds_the_input():
    bench = Bench(lose=(3, 4))
    run = deployment.realtime(K, bench, seconds=0.2, problem=plant, clock="simulated")
    assert run.lost == 2
    assert np.isnan(run.ys[3:5]).all()
    np.testing.assert_array_equal(run.us[3], run.us[2])
    np.testing.assert_array_equal(run.us[4], run.us[2])
    assert np.isfinite(bench.us).all()


def test_a_controller_with_sensors_is_given_their_outputs():
    problem = Problem.of(plant)
    C = np.array([[1.0, 0.0]])
    design = lqg(problem, C)

    run = deployment.realtime(design, Bench(width=1), seconds=1.0, problem=problem, clock="simulated")
    z, x = np.zeros(2), START
    for t in range(50):
        y = x[:1] - X_EQ[:1]
        u = design.C @ z + design.D @ y
        z = design.A @ z + design.B @ y
        np.testing.assert_allclose(run.us[t], U_EQ + u, atol=1e-9)
        x = X_EQ + A @ (x - X_EQ) + B @ u
    assert run.trajectory is None
    assert run.ys.shape == (50, 1)


def test_limits_hold_for_the_thing_itself():
    problem = Problem.of(plant, limits=(1.0, 2.0))
    bench = Bench()
    deployment.realtime(K, bench, seconds=0.4, problem=problem, clock="simulated")
    assert np.min(bench.us) >= 1.0
    assert np.max(bench.us) <= 2.0


@pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler")
def test_exported_c_is_called_without_jax(tmp_path):
    """By a simulated plant and by the thing itself, from the state and from sensors: the loop of the JAX policy."""
    problem = Problem.of(plant, limits=(0.5, 4.0))
    for name, controller in {"gain": K, "lqg": lqg(problem, np.array([[1.0, 0.0]]))}.items():
        exported = deployment.load_c(deployment.to_c(controller, problem, tmp_path / name))
        run = deployment.realtime(exported, problem, seconds=1.0, x0=START - X_EQ)
        ref = simulation.rollout(problem, controller, START - X_EQ, 50)
        if not run.skipped:
            np.testing.assert_allclose(run.trajectory.xs, ref.xs, atol=1e-10)
        width = 2 if name == "gain" else 1
        runs = [
            deployment.realtime(c, Bench(width=width), seconds=1.0, problem=problem, clock="simulated")
            for c in (controller, exported)
        ]
        np.testing.assert_allclose(runs[0].us, runs[1].us, atol=1e-10)


def served(receive, send, num):
    """The other end of a line: answers so many questions, some only after an answer to an older one."""
    bench, u = Bench(), None
    while bench.count <= num:
        message = receive()
        if not message:
            return
        kind, tick = struct.unpack("<cI", message[:5])
        if kind == b"u":
            bench.us.append(np.array(struct.unpack("<d", message[5:])))
            continue
        y = bench.measure()
        if tick == 7 and u is None:
            send(struct.pack("<I2d", 6, 1e9, 1e9))
        send(struct.pack("<I2d", tick, *y))


def test_udp_on_loopback():
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 0))
    server.settimeout(20)
    peer = []

    def receive():
        data, address = server.recvfrom(100)
        peer[:] = [address]
        return data

    thread = threading.Thread(target=served, args=(receive, lambda data: server.sendto(data, peer[0]), 20), daemon=True)
    thread.start()
    where = f"udp://127.0.0.1:{server.getsockname()[1]}"
    run = deployment.realtime(K, where, seconds=0.4, problem=plant, clock="simulated")
    thread.join(20)
    server.close()
    np.testing.assert_allclose(run.ys, expected(20)[0][:-1], atol=1e-12)
    nobody = deployment.realtime(K, where, seconds=0.06, problem=plant)
    assert nobody.lost == len(nobody.ticks)  # and the input stayed that of the equilibrium
    np.testing.assert_array_equal(nobody.us, np.broadcast_to(U_EQ, nobody.us.shape))


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_serial_line():
    pytest.importorskip("serial")
    import tty

    main, other = os.openpty()
    tty.setraw(main)
    tty.setraw(other)

    def receive():
        data = b""
        while len(data) < 5 or (data[:1] == b"u" and len(data) < 13):
            data += os.read(main, 1)
        return data

    thread = threading.Thread(target=served, args=(receive, lambda data: os.write(main, data), 20), daemon=True)
    thread.start()
    path = os.ttyname(other)
    run = deployment.realtime(K, f"serial:{path}?baud=115200", seconds=0.4, problem=plant, clock="simulated")
    thread.join(20)
    np.testing.assert_allclose(run.ys, expected(20)[0][:-1], atol=1e-12)
    os.close(other)
    os.close(main)


# Refusals -----------------------------------------------------------------------------------------------------


def test_what_is_refused_in_words():
    problem = Problem.of(plant)
    for arguments, words in (
        ({"plant": lambda u: START}, "problem: expected the plant"),
        ({"plant": plant, "rate": -1.0}, "rate"),
        ({"plant": problem, "rate": 70.0}, "a controller is designed for one rate"),
        ({"plant": plant, "seconds": 0.0}, "seconds"),
        ({"plant": plant, "seconds": 1e300}, "at most 10000000 samples"),
        ({"plant": plant, "clock": "sundial"}, "clock"),
        ({"plant": plant, "x0": [1.0]}, "x0"),
        ({"plant": systems.sample("pendulum", key=jax.random.key(0), num=2)}, "one plant, but found a batch"),
        ({"plant": Problem.of(plant, noise=1e-3)}, "key"),
        ({"plant": "tcp://127.0.0.1:80", "problem": plant}, "address beginning with"),
        ({"plant": "udp://nowhere", "problem": plant}, "udp://host:port"),
        ({"plant": lambda u: np.zeros(3), "problem": plant}, "measurements of 2 numbers"),
        ({"plant": 3.0, "problem": plant}, "plant"),
    ):
        with pytest.raises(ValueError, match=words):
            deployment.realtime(K, **{"seconds": 0.1} | arguments)
