"""A and B against the numbers that the sources print.

Coordinates are brought into the source's order, signs and units before comparing; a number counts as
reproduced if it rounds to the digits printed there. Where a source prints a formula, the formula is evaluated
here.
"""

import jax.numpy as jnp
import numpy as np
import pytest

from lqrlab import systems


def matrices(name, **parameters):
    return tuple(np.asarray(a) for a in systems.make(name, **parameters).matrices())


def printed(found, text):
    """Every entry rounds to what ``text`` prints: rows on lines, digits as in the source."""
    rows = [line.split() for line in text.strip().splitlines()]
    assert np.shape(found) == (len(rows), len(rows[0]))
    for value, word in zip(np.ravel(found), (word for row in rows for word in row)):
        digits = len(word.partition(".")[2])
        # half a unit of the last digit printed, and the rounding error of a value that sits on the half
        assert abs(value - float(word)) <= 0.5 * 10.0**-digits * (1 + 1e-9), (value, word)


def reordered(A, B, order, signs=None):
    """(A, B) of the states ``order``, each with a sign."""
    T = np.eye(len(order))[list(order)] * np.ones(len(order))
    T = np.diag(signs if signs is not None else np.ones(len(order))) @ T
    return T @ A @ T.T, T @ B


# name: parameters, order and signs of the states, A and B as printed
PRINTED = {
    # Tilbury and Messner, Control Tutorials, Inverted Pendulum: System Modeling; x, ẋ, φ, φ̇, φ the other way round
    "cart_pole": (
        {},
        ((0, 2, 1, 3), (1, 1, -1, -1)),
        "0 1 0 0 \n 0 -0.1818 2.6727 0 \n 0 0 0 1 \n 0 -0.4545 31.1818 0",
        "0 \n 1.8182 \n 0 \n 4.5455",
    ),
    # Tilbury and Messner, Control Tutorials, State-Space Methods for Controller Design
    "magnetic_levitation": ({}, None, "0 1 0 \n 980 0 -2.8 \n 0 0 -100", "0 \n 0 \n 100"),
    # Tilbury and Messner, Control Tutorials, Introduction: System Modeling, m = 1, b = 0.2, k = 1
    "mass_spring_damper": (dict(mass=1.0, damping=0.2, stiffness=1.0), None, "0 1 \n -1 -0.2", "0 \n 1"),
    # Wie and Bernstein (1992), m₁ = m₂ = 1 and k = 1
    "two_mass_spring": ({}, None, "0 0 1 0 \n 0 0 0 1 \n -1 1 0 0 \n 1 -1 0 0", "0 \n 0 \n 1 \n 0"),
    # Brockett (1970), with a unit orbit ω = 1: states r, ṙ, θ, θ̇
    "satellite_orbit": (
        dict(gravity_constant=1.0, radius=1.0),
        ((0, 2, 1, 3), None),
        "0 1 0 0 \n 3 0 0 2 \n 0 0 0 1 \n 0 -2 0 0",
        "0 0 \n 1 0 \n 0 0 \n 0 1",
    ),
    # The MathWorks, Control System Toolbox, Yaw Damper Design for a 747 Jet Aircraft
    "fixed_wing_lateral": (
        {},
        None,
        "-.0558 -.9968 .0802 .0415 \n .598 -.115 -.0318 0 \n -3.05 .388 -.4650 0 \n 0 0.0805 1 0",
        ".00729 0 \n -0.475 0.00775 \n 0.153 0.143 \n 0 0",
    ),
    # Åström and Murray, Feedback Systems, 1st ed., examples 6.5 and 5.11 (20 m/s in fourth gear)
    "predator_prey": ({}, None, "0.13 -0.93 \n 0.57 0", "17.2 \n 0"),
    "cruise_control": ({}, None, "-0.0101", "1.32"),
    # Åström and Murray, Feedback Systems, chapter 6
    "double_integrator": ({}, None, "0 1 \n 0 0", "0 \n 1"),
}


@pytest.mark.parametrize("name", PRINTED)
def test_matrices_as_printed(name):
    parameters, order, A_printed, B_printed = PRINTED[name]
    A, B = matrices(name, **parameters)
    if order:
        A, B = reordered(A, B, *order)
    printed(A, A_printed)
    printed(B, B_printed)


def test_equilibria_as_printed():
    """Åström and Murray, Feedback Systems, 1st ed., examples 6.5 and 5.11."""
    printed(systems.make("predator_prey").equilibrium()[0][None], "20.6 29.5")
    printed(systems.make("cruise_control").equilibrium()[1][None], "0.1687")


def test_dc_motor():
    """Tilbury and Messner, Control Tutorials, DC Motor Speed: System Modeling; states θ̇, i."""
    A, B = matrices("dc_motor")
    printed(A[1:, 1:], "-10 1 \n -0.02 -2")
    printed(B[1:], "0 \n 2")


def test_vtol():
    """python-control, examples/pvtol-lqr.py (Åström and Murray, Feedback Systems)."""
    A, B = matrices("vtol")
    m, J, r, g, c = 4, 0.0475, 0.25, 9.8, 0.05
    expected = np.zeros((6, 6))
    expected[:3, 3:] = np.eye(3)
    expected[3, 2:4], expected[4, 4] = (-g, -c / m), -c / m
    np.testing.assert_allclose(A, expected, atol=1e-12)
    np.testing.assert_allclose(B, [[0, 0], [0, 0], [0, 0], [1 / m, 0], [0, 1 / m], [r / J, 0]], atol=1e-12)


def test_airliner():
    """Boyd, EE263, linear model of a Boeing 747 in level flight at 40,000 ft and 774 ft/s; ft/s and
    hundredths of a rad, thrust in ft/s²."""
    A, B = matrices("airliner")
    state, control = np.array([0.3048, 0.3048, 0.01, 0.01]), np.array([0.01, 0.3048])
    A, B = A * state / state[:, None], B * control / state[:, None]
    printed(A, "-.003 .039 0 -.322 \n -.065 -.319 7.74 0 \n .020 -.101 -.429 0 \n 0 0 1 0")
    printed(B, ".01 1 \n -.18 -.04 \n -1.16 .598 \n 0 0")


BEQUETTE = {  # hours, kmol/m³, K
    "turnover": 1 / 3600,
    "rate_constant": 9703.0,
    "activation": 11843 / 1.987,
    "heat_rise": 5960 / 500,
    "exchange": 150 / 500 / 3600,
    "feed_concentration": 10.0,
    "feed_temperature": 298.0,
}


@pytest.mark.parametrize(
    ("temperature", "concentration", "text"),
    [(311.2, "8.564", "-1.1680 -0.0886 \n 2.0030 -0.2443"), (339.1, "5.518", "-1.8124 -0.2324 \n 9.6837 1.4697")],
)
def test_stirred_tank_reactor(temperature, concentration, text):
    """B. W. Bequette, Process Dynamics: Modeling, Analysis and Simulation (1998), module 9, case 2: two of
    the three steady states; printed for the temperature rounded to a tenth of a kelvin, hence the looser
    comparison."""
    x, u = systems.make("stirred_tank_reactor", temperature=temperature, **BEQUETTE).equilibrium()
    assert abs(float(x[0]) - float(concentration)) < 0.01
    assert abs(float(u[0]) - 298) < 1.0  # the jacket of that case is at 298 K
    A, B = matrices("stirred_tank_reactor", temperature=temperature, **BEQUETTE)
    rows = np.array([[float(w) for w in line.split()] for line in text.splitlines()])
    np.testing.assert_allclose(3600 * A, rows, rtol=2e-3)
    np.testing.assert_allclose(3600 * B, [[0], [0.3]], atol=1e-9)


def test_platoon():
    """Levine and Athans as CAREX example 15 (Abels and Benner, 1999): blocks [-1 0; 1 0] and [0 0; -1 0]."""
    A, B = matrices("platoon", mass=1.0, friction=1.0, drag_area=0.0)
    expected = np.zeros((11, 11))
    for i in range(5):
        expected[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = [[-1, 0], [1, 0]]
        expected[2 * i + 1, 2 * i + 2] = -1
    expected[10, 10] = -1
    np.testing.assert_allclose(A, expected, atol=1e-12)
    np.testing.assert_allclose(B, np.eye(11)[:, ::2], atol=1e-12)


def test_flexible_joint_robot():
    """Raghavan and Hedrick (1994): states θm, ωm, θl, ωl, the link's −3.33 sin θl added to the linear part;
    input in volts of a motor whose gain gives 21.6."""
    motor, link = 0.18 / 48.6, 0.18 / 19.5
    given = dict(motor_inertia=motor, link_inertia=link, stiffness=0.18, motor_friction=1.25 * motor)
    mass = 3.33 * link / (9.81 * 0.05)
    A, B = reordered(*matrices("flexible_joint_robot", **given, link_mass=mass, centre=0.05), (1, 3, 0, 2))
    printed(A, "0 1 0 0 \n -48.6 -1.25 48.6 0 \n 0 0 0 1 \n 19.5 0 -22.83 0")
    printed(B * 0.08, "0 \n 21.6 \n 0 \n 0")


def test_two_area_power():
    """Fosha and Elgerd (1970), the two equal areas: Tp = 20 s, Kp = 120 Hz/pu, Tt = 0.3 s, Tg = 0.08 s, R =
    2.4 Hz/pu, 2πT = 0.545; the tie line's power as a state."""
    A, B = matrices("two_area_power")
    state = np.array([1, 1, 1, 1, 1, 1, 1 / 0.545])
    A, B = A * state / state[:, None], B / state[:, None]
    printed(
        A,
        """-0.05 6 0 0 0 0 -6
           0 -3.33 3.33 0 0 0 0
           -5.208 0 -12.5 0 0 0 0
           0 0 0 -0.05 6 0 6
           0 0 0 0 -3.33 3.33 0
           0 0 0 -5.208 0 -12.5 0
           0.545 0 0 -0.545 0 0 0""",
    )
    printed(B, "0 0 \n 0 0 \n 12.5 0 \n 0 0 \n 0 0 \n 0 12.5 \n 0 0")


def test_vehicle_lateral():
    """Rajamani (2012), chapter 2, the single-track model, for the passenger car of section 3.1."""
    A, B = matrices("vehicle_lateral")
    m, Iz, lf, lr, C, V = 1573.0, 2873.0, 1.1, 1.58, 80000.0, 30.0
    expected = [
        [-(4 * C) / (m * V), -V - 2 * C * (lf - lr) / (m * V)],
        [-2 * C * (lf - lr) / (Iz * V), -2 * C * (lf**2 + lr**2) / (Iz * V)],
    ]
    np.testing.assert_allclose(A[2:, 2:], expected, rtol=1e-12)
    np.testing.assert_allclose(A[:2], [[0, V, 1, 0], [0, 0, 0, 1]], atol=1e-12)
    np.testing.assert_allclose(B, [[0], [0], [2 * C / m], [2 * lf * C / Iz]], rtol=1e-12)


def test_furuta_pendulum():
    """Cazzolato and Prime (2011), the upright linearisation, eqs. (35)-(36), with table 1."""
    A, B = matrices("furuta_pendulum")
    m, L, l, J2, b1, b2, g = 0.075, 0.278, 0.148, 0.00386 + 0.075 * 0.148**2, 1e-4, 2.8e-4, 9.81
    J0 = 0.0315 + m * L**2
    det = J0 * J2 - (m * L * l) ** 2
    rows = np.array([[-g * (m * l) ** 2 * L, -b1 * J2, b2 * m * l * L], [g * m * l * J0, b1 * m * l * L, -b2 * J0]])
    np.testing.assert_allclose(A[2:, 1:], rows / det, rtol=1e-9)
    np.testing.assert_allclose(B[2:, 0], np.array([J2, -m * L * l]) / det, rtol=1e-9)


def test_boost_converter():
    """Erickson and Maksimović, averaged small-signal model of the boost converter."""
    p = systems.make("boost_converter")
    (current, voltage), (duty,) = p.equilibrium()
    A, B = matrices("boost_converter")
    L, C, R, RL, share = p.inductance, p.capacitance, p.load, p.winding, 1 - duty
    np.testing.assert_allclose(A, [[-RL / L, -share / L], [share / C, -1 / (R * C)]], rtol=1e-12)
    np.testing.assert_allclose(B, [[voltage / L], [-current / C]], rtol=1e-12)
    np.testing.assert_allclose(share * current, voltage / R, rtol=1e-12)


def test_quarter_car():
    """Tilbury and Messner, Control Tutorials, Suspension: System Modeling: m1 = 2500, m2 = 320, K1 = 80,000,
    K2 = 500,000, b1 = 350, b2 = 15,020; the fourth of its states is an integral, so poles and the gain to the
    suspension's stretch are compared."""
    m1, m2, k1, k2, b1, b2 = 2500.0, 320.0, 80_000.0, 500_000.0, 350.0, 15_020.0
    A, B = matrices("quarter_car", body_mass=m1, wheel_mass=m2, spring=k1, tyre=k2, damper=b1, tyre_damping=b2)
    theirs = np.array(
        [
            [0, 1, 0, 0],
            [-(b1 * b2) / (m1 * m2), 0, (b1 / m1) * (b1 / m1 + b1 / m2 + b2 / m2) - k1 / m1, -b1 / m1],
            [b2 / m2, 0, -(b1 / m1 + b1 / m2 + b2 / m2), 1],
            [k2 / m2, 0, -(k1 / m1 + k1 / m2 + k2 / m2), 0],
        ]
    )
    control = np.array([0, 1 / m1, 0, 1 / m1 + 1 / m2])
    np.testing.assert_allclose(np.poly(A), np.poly(theirs), rtol=1e-9)
    for s in (0.5j, 5j, 60j):
        ours = np.array([1, -1, 0, 0]) @ np.linalg.solve(s * np.eye(4) - A, B[:, 0])
        np.testing.assert_allclose(ours, np.linalg.solve(s * np.eye(4) - theirs, control)[2], rtol=1e-9)


def test_planar_quadrotor():
    """Tedrake, Underactuated Robotics, planar quadrotor in hover: gravity tilts, thrusts lift and turn."""
    A, B = matrices("planar_quadrotor")
    expected = np.zeros((6, 6))
    expected[:3, 3:], expected[3, 2] = np.eye(3), -9.81
    np.testing.assert_allclose(A, expected, atol=1e-12)
    m, r, J = 0.486, 0.25, 0.00383
    np.testing.assert_allclose(B[4:], [[1 / m, 1 / m], [r / J, -r / J]], rtol=1e-12)


def test_fixed_wing_along_its_path():
    """Beard and McLain (2012), chapter 2: m V̇ = T cos α − D − m g sin γ; D of a parabolic polar, off the trim."""
    V, climb, attack, elevator, thrust = 22.0, 0.2, 0.11, -0.07, 17.0
    drag = 0.5 * 1.2682 * V**2 * 0.55 * (0.03 + (0.28 + 3.45 * attack - 0.36 * elevator) ** 2 / (np.pi * 0.9 * 15))
    rate = systems.make("fixed_wing").dynamics(np.array([V, climb, attack, 0.0]), np.array([elevator, thrust]))[0]
    assert rate == pytest.approx((thrust * np.cos(attack) - drag) / 13.5 - 9.81 * np.sin(climb), rel=1e-9)


def test_dual_arm_strains_what_it_holds():
    """½ k |strain|² of the vector between two hands, each the sum of two complex exponentials."""
    plant, rest = systems.make("dual_arm"), (2.2, -1.3, 0.94, 1.3)

    def gap(a, b, c, d):
        return 0.4 * np.exp(1j * c) + 0.35 * np.exp(1j * (c + d)) - 0.4 * np.exp(1j * a) - 0.35 * np.exp(1j * (a + b))

    q = np.array([2.0, -1.0, 1.1, 1.5])
    assert plant.potential(jnp.asarray(q)) == pytest.approx(100.0 * abs(gap(*q) - gap(*rest)) ** 2, rel=1e-9)
