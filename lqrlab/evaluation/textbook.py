"""Designs that others have published: plants of which nothing is in the catalogue.

A and B are as the sources print them, in their units and order of states. Where a source prints diagonal positive
weights they are taken; else Q and R are the identity. The sample times are ours: about a tenth of the time constant
of the fastest mode of the continuous optimal loop.
"""

import dataclasses

import numpy as np

from lqrlab.systems import Linear, from_matrices

Rows = tuple[tuple[float, ...], ...]


@dataclasses.dataclass(frozen=True)
class Design:
    """A published plant ẋ = Ax + Bu and its weights.

    Attributes:
        A, B: as printed.
        dt: sample time [s].
        source: where it is printed.
        Q, R: diagonals of the weights; None for ones.
        K: gain of the continuous regulator, where the source prints it.
    """

    A: Rows
    B: Rows
    dt: float
    source: str
    Q: tuple[float, ...] | None = None
    R: tuple[float, ...] | None = None
    K: Rows | None = None

    def plant(self) -> Linear:
        """The plant, with its weights and sample time, as a batch of one."""
        A, B = np.array(self.A), np.array(self.B)
        Q, R = (np.diag(w or np.ones(size)) for w, size in ((self.Q, len(A)), (self.R, B.shape[1])))
        return from_matrices(A[None], B[None], Q=Q[None], R=R[None], dt=self.dt)


_COMPLEIB = "; as {} in F. Leibfritz, COMPleib (2004)"

DESIGNS = {
    "third_order_plant": Design(
        A=((0, 1, 0), (0, 0, 1), (-35, -27, -9)),
        B=((0,), (0,), (1,)),
        K=((0.0143, 0.1107, 0.0676),),
        dt=0.02,
        source="K. Ogata, Modern Control Engineering, 5th ed. (2010), section 10-8",
    ),
    "position_servo": Design(
        A=((0, 1, 0), (0, 0, 1), (0, -2, -3)),
        B=((0,), (0,), (1,)),
        Q=(100, 1, 1),
        R=(0.01,),
        K=((100.0, 53.12, 11.6711),),
        dt=0.01,
        source="K. Ogata, Modern Control Engineering, 5th ed. (2010), section 10-8",
    ),
    "aircraft_pitch": Design(
        A=((-0.313, 56.7, 0), (-0.0139, -0.426, 0), (0, 56.7, 0)),
        B=((0.232,), (0.0203,), (0,)),
        dt=0.05,
        source="D. Tilbury and B. Messner, Control Tutorials for MATLAB and Simulink (University of Michigan), "
        "Aircraft Pitch: System Modeling",
    ),
    "ammonia_reactor": Design(
        A=(
            (-4.019, 5.12, 0, 0, -2.082, 0, 0, 0, 0.87),
            (-0.346, 0.986, 0, 0, -2.34, 0, 0, 0, 0.97),
            (-7.909, 15.407, -4.069, 0, -6.45, 0, 0, 0, 2.68),
            (-21.816, 35.606, -0.339, -3.87, -17.8, 0, 0, 0, 7.39),
            (-60.196, 98.188, -7.907, 0.34, -53.008, 0, 0, 0, 20.4),
            (0, 0, 0, 0, 94, -147.2, 0, 53.2, 0),
            (0, 0, 0, 0, 0, 94, -147.2, 0, 0),
            (0, 0, 0, 0, 0, 12.8, 0, -31.6, 0),
            (0, 0, 0, 0, 12.8, 0, 0, 18.8, -31.6),
        ),
        B=(
            (0.01, -0.011, -0.151),
            (0.003, -0.021, 0),
            (0.009, -0.059, 0),
            (0.024, -0.162, 0),
            (0.068, -0.445, 0),
            *((0.0, 0.0, 0.0),) * 4,
        ),
        dt=0.001,
        source="L. M. Patnaik, N. Viswanadham and I. G. Sarma, Computer control algorithms for a tubular ammonia "
        "reactor, IEEE Trans. Autom. Control 25 (1980); example 5 of P. Benner, A. Laub and V. Mehrmann, CAREX (1995)",
    ),
    "fighter_lateral": Design(
        A=(
            (-0.322, 0.064, 0.0364, -0.9917, 0.0003, 0.0008, 0),
            (0, 0, 1, 0.0037, 0, 0, 0),
            (-30.6492, 0, -3.6784, 0.6646, -0.7333, 0.1315, 0),
            (8.5396, 0, -0.0254, -0.4764, -0.0319, -0.062, 0),
            (0, 0, 0, 0, -20.2, 0, 0),
            (0, 0, 0, 0, 0, -20.2, 0),
            (0, 0, 0, 57.2958, 0, 0, -1),
        ),
        B=((0, 0), (0, 0), (0, 0), (0, 0), (20.2, 0), (0, 20.2), (0, 0)),
        dt=0.005,
        source="B. L. Stevens and F. L. Lewis, Aircraft Control and Simulation, 2nd ed. (2003), example 5.3-1, the "
        "lateral regulator of the F-16",
    ),
    "manoeuvrable_aircraft": Design(
        A=(
            (-0.0226, -36.6, -18.9, -32.1),
            (0, -1.9, 0.983, 0),
            (0.0123, -11.7, -2.63, 0),
            (0, 0, 1, 0),
        ),
        B=((0, 0), (-0.414, 0), (-77.8, 22.4), (0, 0)),
        dt=0.001,
        source="G. J. Balas, J. C. Doyle, K. Glover, A. Packard and R. Smith, µ-Analysis and Synthesis Toolbox, "
        "User's Guide (1993), the HIMAT vehicle",
    ),
    "vertical_takeoff_helicopter": Design(
        A=(
            (-0.0366, 0.0271, 0.0188, -0.4555),
            (0.0482, -1.01, 0.0024, -4.0208),
            (0.1002, 0.3681, -0.707, 1.42),
            (0, 0, 1, 0),
        ),
        B=((0.4422, 0.1761), (3.5446, -7.5922), (-5.52, 4.49), (0, 0)),
        dt=0.01,
        source="K. S. Narendra and S. S. Tripathi, Identification and optimization of aircraft dynamics, J. Aircraft "
        "10(4), 1973" + _COMPLEIB.format("HE1"),
    ),
    "batch_reactor": Design(
        A=(
            (1.38, -0.2077, 6.715, -5.676),
            (-0.5814, -4.29, 0, 0.675),
            (1.067, 4.273, -6.654, 5.893),
            (0.048, 4.273, 1.343, -2.104),
        ),
        B=((0, 0), (5.679, 0), (1.136, -3.146), (1.136, 0)),
        dt=0.01,
        source="Y. S. Hung and A. G. J. MacFarlane, Multivariable Feedback: A Quasi-Classical Approach (1982)"
        + _COMPLEIB.format("REA1"),
    ),
    "aircraft_vertical_plane": Design(
        A=(
            (0, 0, 1.132, 0, -1),
            (0, -0.0538, -0.1712, 0, 0.0705),
            (0, 0, 0, 1, 0),
            (0, 0.0485, 0, -0.8556, -1.013),
            (0, -0.2909, 0, 1.0532, -0.6859),
        ),
        B=((0, 0, 0), (-0.12, 1, 0), (0, 0, 0), (4.419, 0, -1.665), (1.575, 0, -0.0732)),
        dt=0.02,
        source="Y. S. Hung and A. G. J. MacFarlane, Multivariable Feedback: A Quasi-Classical Approach (1982)"
        + _COMPLEIB.format("AC1"),
    ),
    "distillation_column": Design(
        A=(
            (-0.1094, 0.0628, 0, 0, 0),
            (1.306, -2.132, 0.9807, 0, 0),
            (0, 1.595, -3.149, 1.547, 0),
            (0, 0.0355, 2.632, -4.257, 1.855),
            (0, 0.00227, 0, 0.1636, -0.1625),
        ),
        B=((0, 0), (0.0638, 0), (0.0838, -0.1396), (0.1004, -0.206), (0.0063, -0.0128)),
        dt=0.02,
        source="G. Klein and B. C. Moore, IEEE Trans. Autom. Control 22 (1977); example 2 of J. Kautsky, N. K. Nichols "
        "and P. Van Dooren, Robust pole assignment in linear state feedback, Int. J. Control 41 (1985)",
    ),
    "missile_autopilot": Design(
        A=((-0.876, 1, -0.1209, 0), (8.9117, 0, -130.75, 0), (0, 0, -150, 0), (-1, 0, 0, -0.05)),
        B=((0,), (0,), (150,), (0,)),
        dt=0.0005,
        source="B. Fares, P. Apkarian and D. Noll, An augmented Lagrangian method for a class of LMI-constrained "
        "problems in robust control theory, Int. J. Control 74(4), 2001" + _COMPLEIB.format("AC4"),
    ),
    "control_configured_aircraft": Design(
        A=(
            (-1.341, 0.9933, 0, -0.1689, -0.2518),
            (43.223, -0.8693, 0, -17.251, -1.5766),
            (1.341, 0.0067, 0, 0.1689, 0.2518),
            (0, 0, 0, -20, 0),
            (0, 0, 0, 0, -20),
        ),
        B=((0, 0), (0, 0), (0, 0), (20, 0), (0, 20)),
        dt=0.005,
        source="A. T. Alexandridis and P. N. Paraskevopoulos, A new approach to eigenstructure assignment by output "
        "feedback, IEEE Trans. Autom. Control 41(7), 1996, example 2" + _COMPLEIB.format("AC11"),
    ),
}
"""Name → design."""


def designs() -> dict[str, Linear]:
    """The plants of all designs by name, each a batch of one."""
    return {name: design.plant() for name, design in DESIGNS.items()}
