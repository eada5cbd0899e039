"""Margins of loops with dead time: closed forms, a longer plant, brute force over the frequencies."""

import numpy as np
import pytest
import scipy

from lqrlab import control


def test_delay_margins_of_closed_forms():
    (margin,) = control.margins([[0.0]], [[1.0]], [[2.0]])  # 2 / s
    assert np.isclose(margin.delay_margin, np.pi / 4)
    theta = 2 * np.arcsin(0.25)  # 0.5 / (z − 1)
    (margin,) = control.margins([[1.0]], [[1.0]], [[0.5]], 0.1)
    assert np.isclose(margin.delay_margin, 0.1 * (np.pi / 2 - theta / 2) / theta)
    (margin,) = control.margins([[-1.0]], [[1.0]], [[0.9]])  # never as large as one
    assert margin.delay_margin == np.inf
    # two crossovers: the later one, of the resonance, has the smaller delay margin
    A, B, K = np.array([[-0.5, 0, 0], [0, 0, 1], [0, -100, -0.2]]), np.array([[1.0], [0], [1]]), np.array([[1.0, 0, 1]])
    (margin,) = control.margins(A, B, K)
    w = np.geomspace(1e-2, 1e3, 2_000_001)
    s = 1j * w
    L = 1 / (s + 0.5) + s / (s**2 + 0.2 * s + 100)
    at = np.flatnonzero(np.diff(np.abs(L) > 1))
    assert len(at) == 3
    delays = np.mod(np.angle(-L[at]), 2 * np.pi) / w[at]
    assert np.isclose(margin.delay_margin, delays.min(), rtol=1e-4)
    assert margin.delay_margin < delays[0] / 2
    # one that rises through one beyond −1, from which a delay turns it away, nearly a full turn
    numbers, below = [0.5, 0, 0], np.polymul([1, 0.2, 100], [1 / 200, 1])
    A, B, K, _ = scipy.signal.tf2ss(numbers, below)
    (margin,) = control.margins(A, B, K)
    L = np.polyval(numbers, s) / np.polyval(below, s)
    at = np.flatnonzero(np.diff(np.abs(L) > 1))
    assert np.angle(-L[at[0]]) < 0
    assert np.isclose(margin.delay_margin, (np.mod(np.angle(-L[at]), 2 * np.pi) / w[at]).min(), rtol=1e-4)


def test_margins_with_dead_time_of_an_integrator():
    """L = k exp(−sT)/s: crossover at k, phase π/2 − kT, real at π/2T."""
    k, T = 2.0, 0.3
    (margin,) = control.margins([[0.0]], [[1.0]], [[k]], delay=T)
    assert np.isclose(margin.phase, np.pi / 2 - k * T)
    assert np.isclose(margin.gain_up, np.pi / (2 * k * T))
    assert margin.gain_down == 0
    assert np.isclose(margin.delay_margin, np.pi / 4 - T)
    w = np.geomspace(1e-2, 1e2, 400_001)
    L = k * np.exp(-1j * w * T) / (1j * w)
    assert np.isclose(margin.modulus_margin, np.abs(1 + L).min(), rtol=1e-7)
    assert np.isclose(margin.disk.alpha, (2 * np.abs(1 + L) / np.abs(1 - L)).min(), rtol=1e-7)
    with pytest.raises(ValueError, match=r"delay: expected less than the delay margin of input 0, 0\.7854 s"):
        control.margins([[0.0]], [[1.0]], [[k]], delay=0.8)
    with pytest.raises(ValueError, match=r"delay: expected a dead time ≥ 0 s, but found -0\.1"):
        control.margins([[0.0]], [[1.0]], [[k]], delay=-0.1)


SAMPLED = tuple(np.asarray(a) for a in control.c2d([[0.0, 1.0], [0.0, -1.0]], [[0.0], [1.0]], 0.1))
FLEXIBLE = scipy.linalg.block_diag([[0, 1], [0, -1]], [[0, 1], [-28.09, -0.00106]]), np.array([[0, 1.0, 0, 1]]).T
AXIS = np.array([[0.0, 1.0], [-4.0, 0.0]]), np.array([[0.0], [1.0]])


@pytest.mark.parametrize(
    ("A", "B", "K", "samples"),
    [
        (*SAMPLED, [[2.0, 1.0]], 1),
        ([[1.05]], [[1.0]], [[0.2]], 1),  # lost at ω = 0 where the gain falls to a quarter,
        ([[-0.5]], [[1.0]], [[0.2]], 2),  # and at half the sampling frequency where it grows to 2.5
        (*control.c2d(*AXIS, 0.1), [[0.0, 0.5]], 1),  # a pole on the circle
        (*control.c2d(*FLEXIBLE, 0.1), [[0.7, 0.5, 0, -0.0004]], 1),
    ],
)
def test_a_delay_of_whole_samples_is_that_of_a_longer_plant(A, B, K, samples):
    A, B, K = (np.asarray(a, float) for a in (A, B, K))
    (late,) = control.margins(A, B, K, 0.1, delay=0.1 * samples)
    n = len(A)
    F = np.eye(n + samples, k=1)
    F[:n, :n], F[:n, n:] = A, np.eye(1, samples) * B
    G, gain = np.eye(n + samples)[:, -1:], np.pad(K, ((0, 0), (0, samples)))
    (exact,) = control.margins(F, G, gain, 0.1)
    for name in ("gain_down", "gain_up", "phase", "modulus_margin", "delay_margin"):
        assert np.isclose(getattr(late, name), getattr(exact, name), rtol=1e-6), name
    assert np.isclose(late.disk.alpha, exact.disk.alpha, rtol=1e-6)
    for factor in (late.gain_down, late.gain_up):  # the poles there are on the circle
        if 0 < factor < np.inf:
            assert np.abs(np.linalg.eigvals(F - factor * G @ gain)).max() == pytest.approx(1, abs=1e-6)


def test_plants_with_poles_on_the_axis_have_margins_with_and_without_dead_time():
    (late,) = control.margins(*AXIS, [[0.0, 0.5]], delay=0.1)  # L = 0.5 s exp(−0.1 s) / (s² + 4) is real at π/2T
    w = np.pi / 0.2
    assert late.gain_up == pytest.approx((w**2 - 4) / (0.5 * w), rel=1e-9)
    one, two = control.margins(*(scipy.linalg.block_diag(*[a] * 2) for a in (*AXIS, [[0.0, 0.5]])), delay=[0.1, 0.2])
    assert (one.gain_up, one.disk.alpha) == pytest.approx((late.gain_up, late.disk.alpha), rel=1e-9)
    assert two.gain_up == pytest.approx((w**2 / 4 - 4) / (0.25 * w), rel=1e-9)
    # both poles of A at zero in one block: K (sI − A)⁻¹B = (2.9409 s + α) / s²
    A, B, K = (
        np.array([[-0.1, 0.1], [-0.1, 0.1]]),
        np.array([[-2.4], [0.4]]),
        np.array([[-0.8209974691645815, 2.4263745]]),
    )
    linear, constant = (K @ B).item(), (K @ A @ B).item()
    (found,) = control.margins(A, B, K)
    square = (linear**2 + np.sqrt(linear**4 + 4 * constant**2)) / 2  # of the frequency at which |L| is one
    assert found.phase == pytest.approx(np.arctan(linear * np.sqrt(square) / constant), rel=1e-9)
    assert (found.gain_down, found.gain_up) == (0, np.inf)
    # an unstable plant late at its input is lost where its gain falls to a half
    (down,) = control.margins([[1.0]], [[1.0]], [[2.0]], delay=0.1)
    assert down.gain_down == pytest.approx(0.5, rel=1e-9)


def test_a_narrow_resonance_beside_one_late_input_is_not_missed():
    """Damping 1e-4: L turns within a hundredth of a rad/s; against a grid as fine as that around it."""
    (late,) = control.margins(*FLEXIBLE, [[0.7, 0.5, 0, -0.000848]], delay=0.05)
    s = 1j * (5.3 + np.linspace(-0.01, 0.01, 200_001))
    L = ((0.5 * s + 0.7) / (s * (s + 1)) - 0.000848 * s / (s**2 + 0.00106 * s + 28.09)) * np.exp(-0.05 * s)
    real = L.real[:-1][np.diff(np.sign(L.imag)) != 0]
    assert late.gain_up == pytest.approx(-1 / real.min(), rel=1e-3)
    assert late.disk.alpha == pytest.approx((2 * np.abs(1 + L) / np.abs(1 - L)).min(), rel=1e-4)
