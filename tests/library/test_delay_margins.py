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


def test_a_delay_of_a_whole_sample_is_that_of_a_longer_plant():
    A, B = (np.asarray(a) for a in control.c2d([[0.0, 1.0], [0.0, -1.0]], [[0.0], [1.0]], 0.1))
    K = np.array([[2.0, 1.0]])
    (late,) = control.margins(A, B, K, 0.1, delay=0.1)
    longer = np.block([[A, B], [np.zeros((1, 3))]]), np.array([[0.0], [0], [1]])
    F, G = longer
    (exact,) = control.margins(F, G, np.array([[2.0, 1.0, 0.0]]) @ np.eye(3), 0.1)
    for name in ("gain_up", "phase", "modulus_margin", "delay_margin"):
        assert np.isclose(getattr(late, name), getattr(exact, name), rtol=1e-6), name
    assert np.isclose(late.disk.alpha, exact.disk.alpha, rtol=1e-6)


def test_a_narrow_resonance_beside_one_late_input_is_not_missed():
    """Damping 1e-4: L turns within a hundredth of a rad/s; against a grid as fine as that around it."""
    A = scipy.linalg.block_diag([[0, 1], [0, -1]], [[0, 1], [-28.09, -0.00106]])
    B, K = np.array([[0], [1.0], [0], [1]]), np.array([[0.7, 0.5, 0, -0.000848]])
    (late,) = control.margins(A, B, K, delay=0.05)
    s = 1j * (5.3 + np.linspace(-0.01, 0.01, 200_001))
    L = ((0.5 * s + 0.7) / (s * (s + 1)) - 0.000848 * s / (s**2 + 0.00106 * s + 28.09)) * np.exp(-0.05 * s)
    real = L.real[:-1][np.diff(np.sign(L.imag)) != 0]
    assert late.gain_up == pytest.approx(-1 / real.min(), rel=1e-3)
    assert late.disk.alpha == pytest.approx((2 * np.abs(1 + L) / np.abs(1 - L)).min(), rel=1e-4)
