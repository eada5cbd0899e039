"""Plants at the other end of a real-time loop: simulated, a function, an object, a serial line, UDP.

A device measures at a tick and is then given the input that acts from there on. Messages over a line are of fixed size,
little-endian: the letter ``y`` and the tick (uint32) asks for a measurement, answered by tick and outputs (float64);
the letter ``u``, the tick and the inputs (float64) sets these, without answer. All are absolute, in SI units.
"""

import contextlib
import dataclasses
import socket
import struct
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from lqrlab.compute import checks
from lqrlab.installation import of_extra
from lqrlab.simulation import Problem, Trajectory, loop


class Device:
    """A plant in a loop; what it measures and is given are absolute, or deviations if it is simulated."""

    def measure(self, tick: int) -> Float[np.ndarray, " p"] | None:
        """The measurement of a tick; None if it did not arrive."""
        raise NotImplementedError

    def actuate(self, tick: int, u: Float[np.ndarray, " m"]) -> None:
        """Set the input that acts from this tick on."""
        raise NotImplementedError

    def rest(self) -> None:
        """Do what can be done before the next tick."""

    def close(self) -> None:
        """End the connection."""


@dataclasses.dataclass
class _GivenInput:
    """A policy that answers with a given input and remembers what it saw."""

    u: Array

    def __call__(self, carry: PyTree, x: Array) -> tuple[Array, Array]:
        return x, self.u


def _sample(problem: Problem, x: Array, u: Array, key: PRNGKeyArray | None, tick: Array) -> tuple[Array, ...]:
    """The measurement at a tick; the next state, the input that reached the plant, the cost: one step of a rollout."""
    at = None if key is None else jax.random.fold_in(key, tick)
    after, seen, (u, cost) = loop.step(problem, _GivenInput(u), x, None, at)  # type: ignore[arg-type]
    return seen, after, u, cost


class SimulatedPlant(Device):
    """A problem, step by step as :func:`lqrlab.simulation.rollout` does it, in deviations from the equilibrium."""

    def __init__(self, problem: Problem, x0: Float[np.ndarray, " n"], key: PRNGKeyArray | None) -> None:
        noisy = any(a is not None for a in problem.noise)
        if noisy and key is None:
            raise ValueError("key: the problem's noises need a random key")
        self.problem, self.x, self.noisy = problem, jnp.asarray(x0), noisy
        leaves, tree = jax.tree.flatten((problem, key if noisy else None))

        def sample(leaves: list[Array], x: Array, u: Array, tick: Array) -> tuple[Array, ...]:
            problem, key = jax.tree.unflatten(tree, leaves)
            return _sample(problem, x, u, key, tick)

        # a call of JAX's own program with arrays alone costs a fraction of one that looks through a problem
        self._move, self._leaves = jax.jit(sample), leaves
        self._show = jax.jit(lambda *given: sample(*given)[0])
        self.u, self.tick = np.zeros(problem.m, self.x.dtype), 0
        self.rows: list[tuple[Array, np.ndarray]] = []  # the state at each sample, and what was seen of it
        self.steps: list[list[tuple[Array, Array]]] = []  # the input and cost of each step after it
        jax.block_until_ready(self._move(leaves, self.x, self.u, np.int32(0)))  # compiled now, not in the loop
        self._see(0)

    def _see(self, tick: int) -> np.ndarray:
        if not self.noisy:
            return np.asarray(self.x)
        return np.asarray(self._show(self._leaves, self.x, self.u, np.int32(tick)))

    def measure(self, tick: int) -> np.ndarray:
        """The state as the controller sees it; after ticks that were skipped, of a plant that moved on."""
        while self.tick < tick:
            self.rest()
        self.rows.append((self.x, self._see(tick)))
        return self.rows[-1][1]

    def actuate(self, tick: int, u: np.ndarray) -> None:
        """Hold u."""
        self.u = np.asarray(u, self.u.dtype)  # JAX gets it in rest(): until then somebody waits
        self.steps.append([])

    def rest(self) -> None:
        """Move to the next tick."""
        _, self.x, u, cost = self._move(self._leaves, self.x, self.u, np.int32(self.tick))
        self.steps[-1].append((u, cost))
        self.x.block_until_ready()
        self.tick += 1

    def trajectory(self, ts: Array) -> Trajectory:
        """States, inputs and costs at these times."""
        xs, seen = (jnp.asarray(np.array(a)) for a in zip(*self.rows))
        us = jnp.asarray(np.array([steps[0][0] for steps in self.steps]))
        costs = jnp.asarray([sum(float(cost) for _, cost in steps) for steps in self.steps])
        return Trajectory(ts, xs, us, costs, seen=None if self.problem.noise.sensor is None else seen[:-1])


class CalledPlant(Device):
    """A function of the input since the tick before (None at first) that returns the measurement, as a device."""

    def __init__(self, function: Callable[[np.ndarray | None], Any]) -> None:
        self.function = function
        self.u: np.ndarray | None = None

    def measure(self, tick: int) -> np.ndarray | None:
        """The function's answer."""
        y = self.function(self.u)
        return None if y is None else np.asarray(y, float)

    def actuate(self, tick: int, u: np.ndarray) -> None:
        """Keep u for the next call."""
        self.u = u

    def close(self) -> None:
        """Call it with the last input; whatever it says, the loop is over."""
        if self.u is not None:
            with contextlib.suppress(Exception):
                self.function(self.u)


class MessageLine(Device):
    """A plant behind a message line; ``receive`` returns fewer bytes if they are late."""

    def __init__(
        self,
        send: Callable[[bytes], object],
        receive: Callable[[int], bytes],
        end: Callable[[], object],
        num_outputs: int,
    ) -> None:
        self.send, self.receive, self.end = send, receive, end
        self.answer = struct.Struct(f"<I{num_outputs}d")

    def measure(self, tick: int) -> np.ndarray | None:
        """Ask, and wait; answers to earlier questions are thrown away."""
        self.send(struct.pack("<cI", b"y", tick))
        while len(data := self.receive(self.answer.size)) == self.answer.size:
            number, *values = self.answer.unpack(data)
            if number == tick:
                return np.array(values)
        return None

    def actuate(self, tick: int, u: np.ndarray) -> None:
        """Tell."""
        self.send(struct.pack(f"<cI{len(u)}d", b"u", tick, *u.tolist()))

    def close(self) -> None:
        """End the connection."""
        self.end()


def connect(plant: object, num_outputs: int, patience: float) -> Device:
    """The device of a plant that is not simulated here; an answer is waited for as long as ``patience`` [s].

    The plant is an object with ``measure()`` and ``actuate(u)``, a function, or an address: ``"udp://host:port"``,
    ``"serial:/dev/ttyUSB0?baud=115200"``.
    """
    if isinstance(plant, str | Path):
        kind, _, where = str(plant).partition(":")
        if kind not in _LINES:
            raise ValueError(
                f"plant: expected an address beginning with {', '.join(f'{k}:' for k in _LINES)}, but found {plant!r}"
            )
        try:
            return _LINES[kind](where, num_outputs, patience)
        except (OSError, ValueError, IndexError) as error:
            raise ValueError(f"plant: {str(plant)!r} cannot be reached: {error}") from error
    if callable(getattr(plant, "measure", None)) and callable(getattr(plant, "actuate", None)):
        return _Instrument(plant)
    return CalledPlant(checks.function("plant", plant, "a plant, a problem, a function, a device or an address"))


class _Instrument(Device):
    """An object of the user's with ``measure()`` and ``actuate(u)``."""

    def __init__(self, plant: Any) -> None:
        self.plant = plant

    def measure(self, tick: int) -> np.ndarray | None:
        y = self.plant.measure()
        return None if y is None else np.asarray(y, float)

    def actuate(self, tick: int, u: np.ndarray) -> None:
        self.plant.actuate(u)

    def close(self) -> None:
        getattr(self.plant, "close", self.rest)()


def _udp(where: str, num_outputs: int, patience: float) -> MessageLine:
    at = urllib.parse.urlsplit("udp:" + where)
    if not at.hostname or not at.port:
        raise ValueError(f"plant: expected udp://host:port, but found 'udp:{where}'")
    line = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    line.connect((at.hostname, at.port))
    line.settimeout(patience)

    def receive(size: int) -> bytes:
        try:
            return line.recv(size)
        except (TimeoutError, ConnectionRefusedError):  # nobody listens, yet or any more
            return b""

    def send(data: bytes) -> None:
        try:
            line.send(data)
        except ConnectionRefusedError:  # said of the message before
            line.send(data)

    return MessageLine(send, receive, line.close, num_outputs)


def _serial(where: str, num_outputs: int, patience: float) -> MessageLine:
    serial = of_extra("serial", "[deployment]", "a serial line")
    path, _, query = where.partition("?")
    baud = int(urllib.parse.parse_qs(query).get("baud", ["115200"])[0])
    line = serial.Serial(path, baud, timeout=patience, write_timeout=max(patience, 1.0))

    def send(data: bytes) -> None:
        if data[:1] == b"y":  # what is left of an answer that came too late
            line.reset_input_buffer()
        line.write(data)

    return MessageLine(send, line.read, line.close, num_outputs)


_LINES = {"udp": _udp, "serial": _serial}
