"""Robots on wheels, and vehicles on the road. Some are described by how far they are from where they should be."""

import jax.numpy as jnp
import numpy as np
from jax import Array

from lqrlab.systems import Mechanical, Plant, gravity, param, signals, with_rates
from lqrlab.systems.drawing import Arrow, Box, Disc, Drawing, Line, Spring, Text, axes, car, dial, ground, mark, ring


def _on_line(x: np.ndarray, size: Array | float) -> Drawing:
    """A robot from above on the line it follows, its place along it marked by a ring."""
    (along, across), at = axes(x[2], size), x[:2]
    path = (mark(-4 * size, 4 * size, 0.0, 1.5), ring((0, 0), 0.5 * size, "faint"))
    wheels = [Box(at + s * across, 0.5 * size, 0.12 * size, x[2], "ground") for s in (-0.5, 0.5)]
    return (*path, *wheels, Disc(at, 0.45 * size), Arrow(at, at + 0.8 * along))


class UnicycleRobot(Plant):
    """Robot on one steered wheel that follows a point moving along a straight line.

    Source: B. Siciliano, L. Sciavicco, L. Villani and G. Oriolo, Robotics: Modelling, Planning and Control (2009),
    section 11.2.1, the unicycle, and 11.6, tracking in the frame of the reference
    """

    cruise: Array = param(0.5, "m/s", "speed of the point it follows", 0.05, 10.0)
    slip: Array = param(0.0, "m", "how far ahead of the wheel its reference point lies", 0.0, 0.5)

    states = signals("along, across ± 0.2 m, heading ± 0.3 rad")
    inputs = signals("speed = 0.5 ± 0.3 m/s, turn_rate ± 1 rad/s")
    dt = 0.05
    drawn_in = "m"

    def operating_point(self) -> tuple[Array, Array]:
        return self.point(speed=self.cruise)

    def dynamics(self, x: Array, u: Array) -> Array:
        """Rolling without sideways slip, in the frame of the moving point."""
        s, c = jnp.sin(x[2]), jnp.cos(x[2])
        swing = self.slip * u[1]
        return jnp.stack([u[0] * c - swing * s - self.cruise, u[0] * s + swing * c, u[1]])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        return _on_line(x, 0.3)


class DifferentialDriveRobot(Plant):
    """Robot on two driven wheels that follows a point moving along a straight line.

    Source: B. Siciliano, L. Sciavicco, L. Villani and G. Oriolo, Robotics: Modelling, Planning and Control (2009),
    section 11.4, dynamic model of the unicycle with two driven wheels
    """

    mass: Array = param(10.0, "kg", "mass of the robot", 0.2, 500.0)
    inertia: Array = param(0.4, "kg·m²", "robot about the vertical", 0.002, 100.0)
    wheel_radius: Array = param(0.08, "m", "radius of the wheels", 0.01, 0.5)
    track: Array = param(0.4, "m", "distance of the wheels", 0.05, 2.0)
    friction: Array = param(5.0, "N·s/m", "viscous rolling friction", 0.1, 200.0)
    turn_friction: Array = param(0.2, "N·m·s/rad", "viscous friction of turning", 0.005, 50.0)
    cruise: Array = param(0.6, "m/s", "speed of the point it follows", 0.05, 5.0)

    states = signals("along, across ± 0.2 m, heading ± 0.3 rad, speed = 0.6 ± 0.3 m/s, yaw_rate ± 0.6 rad/s")
    inputs = signals("left_torque, right_torque = 0.12 ± 1 N·m")
    outputs = ("along", "across", "heading")
    dt = 0.05
    drawn_in = "m"

    def operating_point(self) -> tuple[Array, Array]:
        """On the point, as fast as it; the torques overcome friction."""
        torque = 0.5 * self.wheel_radius * self.friction * self.cruise
        return self.point(speed=self.cruise, left_torque=torque, right_torque=torque)

    def dynamics(self, x: Array, u: Array) -> Array:
        """Kinematics in the frame of the moving point, then forces and moment."""
        heading, speed, yaw = x[2:]
        force = (u[0] + u[1]) / self.wheel_radius - self.friction * speed
        moment = 0.5 * self.track * (u[1] - u[0]) / self.wheel_radius - self.turn_friction * yaw
        along, across = speed * jnp.cos(heading) - self.cruise, speed * jnp.sin(heading)
        return jnp.stack([along, across, yaw, force / self.mass, moment / self.inertia])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        return _on_line(x, self.track)


class OmnidirectionalRobot(Mechanical):
    """Robot on three omnidirectional wheels, which may move any way without turning first.

    Source: H. P. Oliveira, A. J. Sousa, A. P. Moreira and P. J. Costa, Modeling and assessing of omni-directional
    robots with three and four wheels, in Contemporary Robotics (2009), three wheels at 120 degrees
    """

    mass: Array = param(8.0, "kg", "mass of the robot", 0.2, 500.0)
    inertia: Array = param(0.15, "kg·m²", "robot about the vertical", 0.002, 100.0)
    wheel_radius: Array = param(0.05, "m", "radius of the wheels", 0.01, 0.5)
    arm: Array = param(0.2, "m", "centre to wheels", 0.03, 2.0)
    friction: Array = param(4.0, "N·s/m", "viscous rolling friction of a wheel", 0.0, 200.0)

    states = with_rates("x, y ± 0.3 m, heading ± 0.3 rad")
    inputs = signals("torque1, torque2, torque3 ± 0.5 N·m")
    dt = 0.05

    _WHEELS = np.pi / 3 + 2 * np.pi / 3 * np.arange(3)

    def kinetic(self, q: Array, v: Array) -> Array:
        return 0.5 * (self.mass * (v[0] ** 2 + v[1] ** 2) + self.inertia * v[2] ** 2)

    def forces(self, q: Array, v: Array, u: Array) -> Array:
        """Each wheel pushes along its rolling direction [2] and slides freely across it."""
        at = q[2] + jnp.asarray(self._WHEELS, q.dtype)
        rolling = jnp.stack([-jnp.sin(at), jnp.cos(at)], axis=1)
        push = u / self.wheel_radius - self.friction * (rolling @ v[:2] + self.arm * v[2])
        return jnp.concatenate([push @ rolling, self.arm * jnp.sum(push)[None]])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        at, nose = x[:2], x[:2] + axes(x[2], self.arm)[0]
        wide, long = 0.25 * self.arm, 0.6 * self.arm
        wheels = [Box(at + axes(a, self.arm)[0], wide, long, a, "ground") for a in x[2] + self._WHEELS]
        return (ring((0, 0), self.arm, "faint"), *wheels, Disc(at, 0.8 * self.arm), Arrow(at, nose))


class Segway(Mechanical):
    """Two-wheeled robot that balances upright while it drives and turns.

    Source: K. Pathak, J. Franch and S. K. Agrawal, Velocity and position control of a wheeled inverted pendulum by
    partial feedback linearization, IEEE Trans. Robot. 21(3), 2005, section II; the place along the path as first
    coordinate
    """

    body_mass: Array = param(4.0, "kg", "mass of the body", 0.1, 150.0)
    wheel_mass: Array = param(0.4, "kg", "mass of a wheel", 0.01, 20.0)
    wheel_radius: Array = param(0.1, "m", "radius of the wheels", 0.01, 0.5)
    track: Array = param(0.35, "m", "distance of the wheels", 0.05, 1.5)
    height: Array = param(0.3, "m", "axle to the body's centre of mass", 0.03, 2.0)
    pitch_inertia: Array = param(0.12, "kg·m²", "body about the axle's direction, at its centre", 1e-3, 50.0)
    yaw_inertia: Array = param(0.05, "kg·m²", "body about the vertical, upright", 1e-3, 50.0)
    friction: Array = param(0.01, "N·m·s/rad", "viscous friction between wheel and body", 0.0, 1.0)
    gravity: Array = gravity()

    states = with_rates("path ± 0.3 m, pitch ± 0.15 rad, yaw ± 0.3 rad", time=0.4)
    inputs = signals("left_torque, right_torque ± 2 N·m")
    dt = 0.02

    def kinetic(self, q: Array, v: Array) -> Array:
        """Of the body and the wheels, which are discs that roll."""
        s, c = jnp.sin(q[1]), jnp.cos(q[1])
        along, up = v[0] + self.height * c * v[1], self.height * s * v[1]
        turning = self.yaw_inertia * c**2 + (self.pitch_inertia + self.body_mass * self.height**2) * s**2
        wheels = 3 * self.wheel_mass * (v[0] ** 2 + (0.5 * self.track * v[2]) ** 2)
        about = 0.5 * self.wheel_mass * (self.wheel_radius * v[2]) ** 2
        body = self.body_mass * (along**2 + up**2) + self.pitch_inertia * v[1] ** 2 + turning * v[2] ** 2
        return 0.5 * (body + wheels + about)

    def potential(self, q: Array) -> Array:
        return self.body_mass * self.gravity * self.height * jnp.cos(q[1])

    def forces(self, q: Array, v: Array, u: Array) -> Array:
        """Torques between body and wheels; the path bends with the yaw, which does no work."""
        turning = 0.5 * self.track * v[2]
        wheels = jnp.stack([v[0] - turning, v[0] + turning]) / self.wheel_radius
        torque = u - self.friction * (wheels - v[1])
        sideways = self.body_mass * self.height * jnp.sin(q[1]) * v[2]
        drive = (torque[0] + torque[1]) / self.wheel_radius + sideways * v[2]
        steer = 0.5 * self.track * (torque[1] - torque[0]) / self.wheel_radius - sideways * v[0]
        return jnp.stack([drive, -torque[0] - torque[1], steer])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        """From the side; the dial in the sky is the yaw."""
        size, axle = self.height, (x[0], self.wheel_radius)
        head = axes(np.pi / 2 - x[1], 1.8 * size)[0] + axle
        compass = dial((2.2 * size, 1.6 * size), 0.3 * size, x[2], "yaw")
        wheel = dial(axle, self.wheel_radius, -x[0] / self.wheel_radius)
        body = (Line([axle, head], "body", 8.0), Disc(head, 0.15 * size))
        return (ground(-3 * size, 3 * size), *wheel, *body, *compass)


class VehicleLateral(Plant):
    """Car keeping its lane at constant speed: a single-track model steered at the front.

    Source: R. Rajamani, Vehicle Dynamics and Control, 2nd ed. (2012), section 2.5, eqs. (2.45)-(2.46) and the passenger
    car of section 3.1; slip angles kept nonlinear
    """

    mass: Array = param(1573.0, "kg", "mass of the car", 300.0, 20000.0)
    yaw_inertia: Array = param(2873.0, "kg·m²", "inertia about the vertical", 300.0, 50000.0)
    front: Array = param(1.1, "m", "centre of mass to front axle", 0.3, 5.0)
    rear: Array = param(1.58, "m", "centre of mass to rear axle", 0.3, 5.0)
    front_stiffness: Array = param(80000.0, "N/rad", "cornering stiffness of a front tyre", 5e3, 5e5)
    rear_stiffness: Array = param(80000.0, "N/rad", "cornering stiffness of a rear tyre", 5e3, 5e5)
    speed: Array = param(30.0, "m/s", "forward speed", 2.0, 70.0)

    states = signals("lateral_position ± 0.5 m, heading ± 0.05 rad", "lateral_velocity ± 0.5 m/s, yaw_rate ± 0.2 rad/s")
    inputs = signals("steering ± 0.05 rad")
    outputs = ("lateral_position", "heading", "yaw_rate")
    dt = 0.02
    drawn_in = "m"

    def dynamics(self, x: Array, u: Array) -> Array:
        """Two tyres an axle, forces proportional to their slip angles."""
        _, heading, slide, yaw = x
        front = 2 * self.front_stiffness * (u[0] - jnp.arctan((slide + self.front * yaw) / self.speed))
        rear = -2 * self.rear_stiffness * jnp.arctan((slide - self.rear * yaw) / self.speed)
        side = front * jnp.cos(u[0])
        sideways = self.speed * jnp.sin(heading) + slide * jnp.cos(heading)
        slide_rate = (side + rear) / self.mass - self.speed * yaw
        turn = (self.front * side - self.rear * rear) / self.yaw_inertia
        return jnp.stack([sideways, yaw, slide_rate, turn])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        edges = (Line([(-6, y), (6, y)], "ground", 1.5, dashed=True) for y in (-1.75, 1.75))
        return (*edges, *car(0, x[0], x[1], 4.5, 1.8, u[0]))


class CruiseControl(Plant):
    """Car held at a speed by its throttle, against rolling, air and a hill.

    Source: K. J. Åström and R. M. Murray, Feedback Systems, 1st ed. (2008), section 3.1 (eqs. (3.1)-(3.4)) and example
    5.11, which prints the linearised model

    Limits: At ±50%, two variants in a thousand need more than full throttle at rest.
    """

    mass: Array = param(1600.0, "kg", "mass of the car", 300.0, 40000.0)
    gear: Array = param(12.0, "rad/m", "engine speed over road speed, fourth gear", 5.0, 60.0)
    peak_torque: Array = param(190.0, "N·m", "engine's greatest torque", 60.0, 5000.0)
    peak_speed: Array = param(420.0, "rad/s", "engine speed of greatest torque", 150.0, 1000.0)
    falloff: Array = param(0.4, "1", "how quickly torque falls off either side", 0.0, 0.5)
    rolling: Array = param(0.01, "1", "rolling resistance over weight", 0.0, 0.1)
    drag_area: Array = param(0.768, "m²", "drag coefficient times frontal area", 0.05, 10.0)
    slope: Array = param(0.0, "rad", "slope of the road", -0.1, 0.1)
    air_density: Array = param(1.3, "kg/m³", "density of the air", 0.2, 1.5, vary=False)
    cruise: Array = param(20.0, "m/s", "speed to hold", 5.0, 60.0)
    gravity: Array = gravity(9.8)

    states = signals("speed = 20 ± 2 m/s")
    inputs = signals("throttle = 0.17 ± 0.2 1")
    dt = 0.2

    def _torque(self, speed: Array) -> Array:
        return self.peak_torque * (1 - self.falloff * (self.gear * speed / self.peak_speed - 1) ** 2)

    def _resistance(self, speed: Array) -> Array:
        hill = self.mass * self.gravity * (self.rolling + jnp.sin(self.slope))
        return hill + 0.5 * self.air_density * self.drag_area * speed**2

    def operating_point(self) -> tuple[Array, Array]:
        """The throttle at which the engine just overcomes all resistance."""
        throttle = self._resistance(self.cruise) / (self.gear * self._torque(self.cruise))
        return self.point(speed=self.cruise, throttle=throttle)

    def dynamics(self, x: Array, u: Array) -> Array:
        return (self.gear * u * self._torque(x) - self._resistance(x)) / self.mass

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        body = (Box((0, 0.7), 4.0, 0.7), Box((-0.2, 1.25), 2.0, 0.5))
        wheels = (Disc((-1.2, 0.35), 0.35, "ground"), Disc((1.2, 0.35), 0.35, "ground"))
        wanted = Line([(2.2 + 0.2 * self.cruise, y) for y in (0.3, 1.3)], "faint", 2.0)
        speed = Arrow((2.2, 0.8), (2.2 + 0.2 * x[0], 0.8))
        push = float(np.clip(u[0], -1, 1))
        pedal = (Box((-3.6, 1.0), 0.4, 2.0, ink="faint"), Box((-3.6, push), 0.4, 2 * abs(push), ink="accent"))
        return (ground(-4.5, 7), *wheels, *body, wanted, speed, *pedal, Text((-3.6, 2.3), "throttle"))


class Platoon(Plant):
    """Six vehicles one behind the other that keep their speed and the gaps between them.

    Source: W. S. Levine and M. Athans, On the optimal error regulation of a string of moving vehicles, IEEE Trans.
    Autom. Control 11(3), 1966; as example 15 of J. Abels and P. Benner, CAREX (SLICOT working note 1999-14), with air
    drag added; a gap is what it is longer than wanted
    """

    mass: Array = param(1500.0, "kg", "mass of a vehicle", 0.5, 60000.0)
    friction: Array = param(40.0, "N·s/m", "linear resistance of a vehicle", 0.0, 5000.0)
    drag_area: Array = param(0.8, "m²", "drag coefficient times frontal area", 0.0, 10.0)
    air_density: Array = param(1.2, "kg/m³", "density of the air", 0.0, 1.5, vary=False)
    cruise: Array = param(22.0, "m/s", "speed to hold", 1.0, 60.0)

    states = signals(*(f"speed{i} = 22 ± 1 m/s, gap{i} ± 2 m" for i in range(1, 6)), "speed6 = 22 ± 1 m/s")
    inputs = signals(*(f"force{i} = 1112 ± 2000 N" for i in range(1, 7)))
    dt = 0.1
    drawn_in = "m"

    def operating_point(self) -> tuple[Array, Array]:
        """All as fast as wanted, each pushed against its resistance."""
        push = self.friction * self.cruise + 0.5 * self.air_density * self.drag_area * self.cruise**2
        return self.cruise * jnp.asarray(np.resize([1.0, 0.0], 11)), jnp.broadcast_to(push, (6,))

    def dynamics(self, x: Array, u: Array) -> Array:
        """Newton's law for each, and gaps that grow by differences of speed."""
        speed = x[::2]
        drag = self.friction * speed + 0.5 * self.air_density * self.drag_area * speed**2
        rates, gaps = (u - drag) / self.mass, speed[:-1] - speed[1:]
        return jnp.concatenate([jnp.stack([rates[:-1], gaps], axis=1).reshape(-1), rates[-1:]])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        """The road from above, the leader at the right; arrows are speeds beyond the one wanted."""
        at = -np.concatenate([[0.0], np.cumsum(9.0 + x[1::2])])
        shapes: list = [Line([(-60, y), (6, y)], "ground", 1.0) for y in (-2.5, 2.5)]
        for i, (place, speed) in enumerate(zip(at, x[::2])):
            shapes.append(Box((place, 0), 4.5, 1.8, ink="accent" if i == 0 else "body"))
            shapes.append(Arrow((place, 1.8), (place + 4.0 * (speed - self.cruise), 1.8), "accent"))
        return tuple(shapes)


class QuarterCar(Mechanical):
    """A quarter of a car on its wheel, with an actuator beside spring and damper.

    Source: D. Hrovat, Survey of advanced suspension developments and related optimal control applications, Automatica
    33(10), 1997, the quarter-car model; heights above rest on a flat road
    """

    body_mass: Array = param(300.0, "kg", "quarter of the body", 10.0, 5000.0)
    wheel_mass: Array = param(40.0, "kg", "wheel and axle", 2.0, 1000.0)
    spring: Array = param(16000.0, "N/m", "stiffness of the suspension", 500.0, 3e5)
    damper: Array = param(1000.0, "N·s/m", "damping of the suspension", 10.0, 30000.0)
    hardening: Array = param(1e5, "N/m³", "cubic stiffness of the suspension", 0.0, 1e8)
    tyre: Array = param(190000.0, "N/m", "stiffness of the tyre", 1e4, 2e6)
    tyre_damping: Array = param(0.0, "N·s/m", "damping of the tyre", 0.0, 30000.0)

    states = with_rates("body_height ± 0.05 m, wheel_height ± 0.02 m", time=0.1)
    inputs = signals("force ± 1000 N")
    dt = 0.01
    drawn_in = ""

    def kinetic(self, q: Array, v: Array) -> Array:
        return 0.5 * (self.body_mass * v[0] ** 2 + self.wheel_mass * v[1] ** 2)

    def potential(self, q: Array) -> Array:
        """Of suspension and tyre; weight only shifts the rest that heights are measured from."""
        stretch = q[0] - q[1]
        return 0.5 * (self.spring * stretch**2 + self.tyre * q[1] ** 2) + 0.25 * self.hardening * stretch**4

    def forces(self, q: Array, v: Array, u: Array) -> Array:
        push = u[0] - self.damper * (v[0] - v[1])
        return jnp.stack([push, -push - self.tyre_damping * v[1]])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        """Body over wheel over road, movements five times as large."""
        body, wheel = 1.1 + 5 * x[0], 0.4 + 5 * x[1]
        spring, damper = Spring((-0.15, wheel), (-0.15, body), 0.08), [(0.15, wheel), (0.15, body)]
        tyre = Spring((0, 0), (0, wheel), 0.06, ink="ground")
        masses = (Box((0, body + 0.15), 1.2, 0.3), Box((0, wheel), 0.5, 0.2, ink="accent"))
        return (ground(-1, 1), spring, tyre, Line(damper, "faint", 4.0), *masses)


class HalfCar(Mechanical):
    """Half a car with front and rear suspension, heaving and pitching, an actuator at each axle.

    Source: D. Hrovat, Survey of advanced suspension developments and related optimal control applications, Automatica
    33(10), 1997, the half-car model; heights above rest on a flat road, pitch lifts the front
    """

    mass: Array = param(690.0, "kg", "half of the body", 20.0, 20000.0)
    pitch_inertia: Array = param(1222.0, "kg·m²", "half of the body about its pitch axis", 10.0, 1e5)
    wheel_mass: Array = param(40.0, "kg", "a wheel and its axle", 2.0, 1000.0)
    front: Array = param(1.3, "m", "centre of mass to front axle", 0.3, 5.0)
    rear: Array = param(1.5, "m", "centre of mass to rear axle", 0.3, 5.0)
    spring: Array = param(18000.0, "N/m", "stiffness of a suspension", 500.0, 3e5)
    damper: Array = param(1000.0, "N·s/m", "damping of a suspension", 10.0, 30000.0)
    tyre: Array = param(200000.0, "N/m", "stiffness of a tyre", 1e4, 2e6)

    states = with_rates("heave ± 0.05 m, pitch ± 0.04 rad, front_wheel, rear_wheel ± 0.02 m", time=0.1)
    inputs = signals("front_force, rear_force ± 1000 N")
    dt = 0.01
    drawn_in = ""

    def _stretch(self, q: Array) -> Array:
        s = jnp.sin(q[1])
        return q[0] + jnp.stack([self.front * s, -self.rear * s]) - q[2:]

    def kinetic(self, q: Array, v: Array) -> Array:
        body = self.mass * v[0] ** 2 + self.pitch_inertia * v[1] ** 2
        return 0.5 * (body + self.wheel_mass * jnp.sum(v[2:] ** 2))

    def potential(self, q: Array) -> Array:
        return 0.5 * (self.spring * jnp.sum(self._stretch(q) ** 2) + self.tyre * jnp.sum(q[2:] ** 2))

    def forces(self, q: Array, v: Array, u: Array) -> Array:
        c = jnp.cos(q[1])
        rate = v[0] + jnp.stack([self.front * c, -self.rear * c]) * v[1] - v[2:]
        push = u - self.damper * rate
        turn = c * (self.front * push[0] - self.rear * push[1])
        return jnp.concatenate([jnp.sum(push)[None], turn[None], -push])

    def draw(self, x: np.ndarray, u: np.ndarray) -> Drawing:
        """From the side, driving to the right, movements five times as large."""
        (along, across), body = axes(5 * x[1]), np.array([0.0, 1.2 + 5 * x[0]])
        shapes: list = [ground(-2.5, 2.5)]
        for place, height in ((self.front, x[2]), (-self.rear, x[3])):
            hub = np.array([place, 0.35 + 5 * height])
            shapes += [Spring(hub, body + place * along, 0.08), ring(hub, 0.3)]
        return (*shapes, Box(body + 0.15 * across, 4.0, 0.3, 5 * x[1]))
