"""Robots from files: their motion, rest and signals are MuJoCo's; what cannot be a plant is refused in words."""

import sys

import hostile_files
import jax
import mujoco
import numpy as np
import pytest
from refusals import refused

from lqrlab import robots, systems
from lqrlab.systems import drawing

pytestmark = pytest.mark.usefixtures("catalogue_as_before")

LOOSE = '<worldbody><body><freejoint name="float"/><geom type="sphere" size=".1"/></body>'

CART_POLE = """
<mujoco model="cart and pole">
  <option gravity="0 0 -9.8"/>
  <default><geom contype="0" conaffinity="0"/></default>
  <worldbody>
    <geom type="plane" size="5 5 .1"/>
    <body name="cart" pos="0 0 0.5">
      <joint name="slider" type="slide" axis="1 0 0" damping="0.1" range="-2 2"/>
      <geom type="box" size=".1 .1 .05" mass="0.5"/>
      <body name="pole">
        <joint name="hinge" type="hinge" axis="0 1 0"/>
        <inertial pos="0 0 0.3" mass="0.2" diaginertia="0.006 0.006 1e-6"/>
        <geom type="capsule" fromto="0 0 0 0 0 0.6" size=".02"/>
      </body>
    </body>
  </worldbody>
  <actuator><motor name="force" joint="slider" ctrlrange="-40 40"/></actuator>
</mujoco>"""

# nothing in it is aligned: turned frames, springs, a rotor's inertia, gears, a servo, a massless carriage
ARM = """
<mujoco model="arm">
  <compiler angle="radian"/>
  <default><geom contype="0" conaffinity="0"/></default>
  <worldbody>
    <body name="base" pos="0.1 0 0.2" quat="0.9 0.1 0.3 0">
      <geom type="cylinder" size=".1 .05" mass="3"/>
      <body name="upper arm" pos="0 0 0.1" euler="0.2 -0.1 0.4">
        <joint name="yaw" axis="0.1 0.2 1" pos="0.02 0 0" damping="0.3" armature="0.05" ref="0.2"/>
        <joint name="shoulder" axis="0 1 0.3" damping="0.2" stiffness="5" springref="0.4"/>
        <geom type="capsule" fromto="0 0 0 0.1 0.05 0.5" size=".04" mass="1.2"/>
        <body name="carriage" pos="0.1 0.05 0.5">
          <joint name="lift" type="slide" axis="0 0.2 1" range="-0.1 0.3"/>
          <geom type="box" size=".05 .03 .02" pos="0.02 0.01 0.1" euler="0.3 0 0.2" mass="0.4"/>
          <geom type="ellipsoid" size=".05 .03 .02" mass="0.1"/>
        </body>
      </body>
    </body>
  </worldbody>
  <actuator>
    <motor name="yaw" joint="yaw" gear="20" ctrlrange="-1 1"/>
    <position name="servo" joint="shoulder" kp="60" kv="2"/>
    <motor joint="lift" gear="-3" forcerange="-30 30"/>
  </actuator>
  <keyframe><key name="home" qpos="0.3 0.5 0.1"/><key name="up" qpos="0 0 0"/></keyframe>
</mujoco>"""


LEVER = """
<mujoco>
  <worldbody>
    <body name="lever">
      <joint name="pivot" axis="0 -1 0" damping="0.1"/>
      <geom type="capsule" fromto="0 0 0 0.5 0 0" size="0.02" mass="2"/>
    </body>
  </worldbody>
  <actuator><motor name="motor" joint="pivot" gear="10"/></actuator>
</mujoco>"""

SWING = """
<robot name="swing">
  <link name="base"/>
  <link name="bob">
    <inertial><origin xyz="0 0 -0.5"/><mass value="1"/>
      <inertia ixx="1e-9" iyy="1e-9" izz="1e-9" ixy="0" ixz="0" iyz="0"/></inertial>
  </link>
  <joint name="pivot" type="revolute"><parent link="base"/><child link="bob"/><axis xyz="0 1 0"/>
    <limit lower="-3" upper="3" effort="8" velocity="9"/><dynamics damping="0.05"/></joint>
</robot>"""


@pytest.fixture(scope="module")
def cart_pole():
    return robots.from_mujoco(mujoco.MjModel.from_xml_string(CART_POLE))


@pytest.fixture(scope="module")
def arm(tmp_path_factory):
    file = tmp_path_factory.mktemp("robots") / "arm.xml"
    file.write_text(ARM)
    return robots.from_mujoco(file, dt=0.02)


def test_a_cart_pole_written_as_a_robot_is_that_of_the_catalogue(cart_pole):
    listed = systems.make("cart_pole")
    for found, expected in zip(cart_pole.matrices(), listed.matrices()):
        np.testing.assert_allclose(found, expected, atol=1e-6)
    x, u = np.array([0.1, 0.4, -0.3, 0.8]), np.array([2.0])
    np.testing.assert_allclose(cart_pole.dynamics(x, u), listed.dynamics(x, u), atol=1e-6)


def test_the_motion_is_mujocos_at_any_state(arm):
    m = mujoco.MjModel.from_xml_string(ARM)
    m.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONSTRAINT)
    data, random = mujoco.MjData(m), np.random.default_rng(1)
    xs, us, expected = 2 * random.normal(size=(16, 6)), 2 * random.normal(size=(16, 3)), []
    for x, u in zip(xs, us):
        data.qpos[:], data.qvel[:], data.ctrl[:] = x[:3], x[3:], u
        mujoco.mj_forward(m, data)
        expected.append(data.qacc.copy())
    np.testing.assert_allclose(arm.dynamics(xs, us)[:, 3:], expected, rtol=1e-6, atol=1e-6)


def test_A_and_B_are_mujocos_finite_differences(arm):
    m = mujoco.MjModel.from_xml_string(ARM)
    m.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONSTRAINT | mujoco.mjtDisableBit.mjDSBL_EULERDAMP)
    h, data = m.opt.timestep, mujoco.MjData(m)
    x, u = arm.equilibrium()
    data.qpos[:], data.ctrl[:] = x[:3], u
    Ad, Bd = np.zeros((6, 6)), np.zeros((6, 3))
    mujoco.mjd_transitionFD(m, data, 1e-6, True, Ad, Bd, None, None)
    A, B = (np.asarray(a)[3:] for a in arm.matrices())
    rates = np.concatenate([np.zeros((3, 3)), np.eye(3)], axis=1) + h * A  # Euler's rule, which MuJoCo steps with
    positions = np.eye(3, 6) + h * rates
    np.testing.assert_allclose(np.concatenate([positions, rates]), Ad, atol=1e-6)
    np.testing.assert_allclose(np.concatenate([h * h * B, h * B]), Bd, atol=1e-6)


def test_it_rests_at_its_first_key_frame_held_by_its_inputs(arm):
    x, u = arm.equilibrium()
    np.testing.assert_allclose(x, [0.3, 0.5, 0.1, 0, 0, 0], atol=1e-12)
    np.testing.assert_allclose(arm.dynamics(x, u), 0, atol=1e-9)


def test_signals_and_parameters_are_called_as_in_the_model(arm):
    assert [s.label for s in arm.states[:3]] == ["yaw [rad]", "shoulder [rad]", "lift [m]"]
    assert [s.label for s in arm.states[3:]] == ["yaw rate [rad/s]", "shoulder rate [rad/s]", "lift rate [m/s]"]
    assert [s.label for s in arm.inputs] == ["yaw torque [1]", "servo [rad]", "actuator3 [N]"]
    assert [s.name for s in arm.outputs] == ["yaw", "shoulder", "lift"]
    assert list(arm.parameters)[:4] == ["mass_upper_arm", "mass_carriage", "damping_yaw", "damping_shoulder"]
    assert (arm.title, arm.source.split()[0], float(arm.dt)) == ("arm", "arm.xml", 0.02)
    assert "left out of the model are its stops" in arm.limits


def test_an_input_beyond_its_range_acts_as_the_end_of_the_range(cart_pole):
    x = np.zeros(4)
    np.testing.assert_array_equal(cart_pole.dynamics(x, [41.0]), cart_pole.dynamics(x, [40.0]))
    assert cart_pole.dynamics(x, [40.0])[2] > cart_pole.dynamics(x, [39.0])[2]


def test_variants_rest_where_their_inputs_hold_them(tmp_path):
    (tmp_path / "test_lever.xml").write_text(LEVER)
    assert systems.register_file(tmp_path / "test_lever.xml") == ["test_lever"]
    variants = systems.sample("test_lever", key=jax.random.key(0), num=5)
    x, u = variants.equilibrium()
    np.testing.assert_allclose(u[:, 0], variants.mass_lever * 9.81 * 0.25 / variants.gear_motor, rtol=1e-6)
    np.testing.assert_allclose(variants.dynamics(x, u), 0, atol=1e-9)


def test_a_joint_that_nothing_drives_moves_to_where_a_variant_can_be_held():
    leaning = CART_POLE.replace('pos="0 0 0.3" mass', 'pos="0.03 0 0.3" mass')
    plant = robots.from_mujoco(mujoco.MjModel.from_xml_string(leaning), at=[0.0, -np.arctan(0.1) + 1e-4])
    assert plant.solve_for == ("force", "hinge")
    np.testing.assert_allclose(plant.equilibrium()[0][1], -np.arctan(0.1), atol=1e-9)


def test_a_robot_in_urdf_gets_motors_at_the_joints_that_are_named(tmp_path):
    file = tmp_path / "swing.urdf"
    file.write_text(SWING)
    refused(r"swing.urdf: model: has no actuators.*actuated=\['pivot'\]", robots.from_mujoco, file)
    refused(r"actuated: .* did you mean pivot", robots.from_mujoco, file, actuated=["pivo"])
    plant = robots.from_mujoco(file, actuated=["pivot"])
    listed = systems.make("hanging_pendulum", mass=1.0, length=0.5, friction=0.05)
    for found, expected in zip(plant.matrices(), listed.matrices()):
        np.testing.assert_allclose(found, expected, atol=1e-6)
    low, high = plant.tree.input_limits[:, 0]
    assert (low, high, plant.inputs[0].label) == (-8, 8, "pivot motor [N·m]")  # its effort
    file.write_text(SWING.replace('lower="-3" upper="3"', 'lower="-170" upper="170"'))
    with pytest.warns(UserWarning, match="turns pivot from -170 to 170 rad: if these are degrees, write radians"):
        robots.from_mujoco(file, actuated=["pivot"])


MESHES = "".join(
    f'<{use}><geometry><mesh filename="{name}"/></geometry></{use}>'
    for use in ("visual", "collision")
    for name in ("package://swing/meshes/bob.stl", "file:///nowhere/bob.dae", "bob.obj")
)


@pytest.mark.parametrize("old", ['<link name="bob">', '<link name="base"/>'])
def test_meshes_may_be_missing_where_no_mass_depends_on_them(old, tmp_path):
    file, listed = tmp_path / "swing.urdf", systems.make("hanging_pendulum", mass=1.0, length=0.5, friction=0.05)
    file.write_text(SWING.replace(old, f"{old.replace('/>', '>')}{MESHES}{'</link>' if '/>' in old else ''}"))
    (tmp_path / "bob.obj").write_text("no mesh")
    for found, expected in zip(robots.from_mujoco(file, actuated=["pivot"]).matrices(), listed.matrices()):
        np.testing.assert_allclose(found, expected, atol=1e-6)
    tool = f'<link name="tool">{MESHES}</link><joint name="grip" type="fixed"><parent link="bob"/><child link="tool"/>'
    file.write_text(SWING.replace("</robot>", f"{tool}</joint></robot>"))  # its weight nobody knows
    refused("bob.stl'; put that file where .* or give the body an <inertial>", robots.from_mujoco, file)


def test_shapes_and_pictures_of_mjcf_may_be_missing_too(tmp_path):
    asset = '<asset><mesh name="m" file="m.stl"/><hfield name="h" file="h.png" size="1 1 1 1"/><skin file="s.skn"/>'
    asset += '<texture name="t" type="2d" file="t.png"/><material name="skin" texture="t"/></asset>'
    weighed = '<inertial mass="2" pos="0.25 0 0" diaginertia="1e-9 1e-9 1e-9"/><geom type="mesh" mesh="m"'
    head = f'<mujoco>{asset}<worldbody><geom type="hfield" hfield="h"/><body><geom type="mesh" mesh="m"/></body>'
    (tmp_path / "lever.xml").write_text(
        LEVER.replace("<mujoco>\n  <worldbody>", head).replace(
            '<geom type="capsule" fromto="0 0 0 0.5 0 0" size="0.02" mass="2"', f'{weighed} material="skin"'
        )
    )
    plant = robots.from_mujoco(tmp_path / "lever.xml")
    np.testing.assert_allclose(plant.equilibrium()[1], [2 * 9.81 * 0.25 / 10])
    odd = head.replace("<asset>", '<compiler inertiafromgeom="true"/><asset>')  # the inertial does not count
    (tmp_path / "odd.xml").write_text((tmp_path / "lever.xml").read_text().replace(head, odd))
    refused("Error opening file '[mh].(stl|png)'; put that file where", robots.from_mujoco, tmp_path / "odd.xml")


def test_a_robot_is_drawn_in_the_plane_in_which_it_moves(cart_pole, arm):
    floor, cart, pole, *ends = cart_pole.drawing([0.3, np.pi / 2, 0, 0], [0.0])
    assert isinstance(floor, drawing.Line)
    np.testing.assert_allclose(cart.centre, [0.3, 0.5])
    np.testing.assert_allclose(pole.centre, [0.6, 0.5], atol=1e-9)  # fallen towards +position
    assert (cart.width, cart.height, pole.width, pole.height) == (0.2, 0.1, 0.6, 0.04)
    assert len(ends) == 2
    assert {type(shape) for shape in arm.drawing()} == {drawing.Box, drawing.Disc, drawing.Line}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('name="hinge" type="hinge"', 'name="hinge" type="ball"', "joint 'hinge': is a ball joint"),
        ("<worldbody>", LOOSE, "joint 'float': is a free joint"),
        ('<motor name="force" joint="slider" ctrlrange="-40 40"/>', "", "has no actuators"),
        ("<motor name", '<motor name="spare" site="tip"/><motor name', "actuator 'spare': acts on no joint"),
        ("<motor", '<intvelocity name="slow" joint="hinge" actrange="-1 1"/><motor', "actuator 'slow': has a"),
        ("<actuator>", '<equality><joint joint1="hinge"/></equality><actuator>', "joint 'hinge' stand still"),
        ("<worldbody>", '<option density="500"/><worldbody>', "accelerations differ from MuJoCo's"),
        ('gravity="0 0 -9.8"', 'gravity="100 0 -9.8"', "no input holds the robot at .* joint 'hinge' are left"),
    ],
)
def test_what_cannot_be_a_plant_is_refused_in_words(tmp_path, old, new, words):
    file = tmp_path / "robot.xml"
    file.write_text(CART_POLE.replace('<body name="pole">', '<body name="pole"><site name="tip"/>').replace(old, new))
    refused(f"robot.xml: .*{words}", robots.from_mujoco, file)


def test_a_pose_that_cannot_be_held_is_refused_with_the_nearest_one():
    m = mujoco.MjModel.from_xml_string(CART_POLE)
    refused(r"joint 'hinge' are left.*near it, at=\[0.0, -?0.0\] can be held", robots.from_mujoco, m, at=[0.0, 0.3])
    refused("at: expected 2 positions, one a joint", robots.from_mujoco, m, at=[0.0])
    weak = mujoco.MjModel.from_xml_string(LEVER.replace('gear="10"', 'gear="10" ctrlrange="-.2 .2"'))
    refused(r"'motor': holding the robot at rest takes 0.49.*ctrlrange is \[-0.2, 0.2\]", robots.from_mujoco, weak)
    refused(r"at: the model has no key frames; give positions, as at=\[0.0\]", robots.from_mujoco, weak, at="home")


def test_what_smooth_motion_leaves_out_is_warned_of_where_it_acts_at_rest():
    lying = LEVER.replace("<worldbody>", '<worldbody><geom type="plane" size="1 1 1" pos="0 0 -.01"/>')
    stopped = lying.replace('name="pivot" axis', 'name="pivot" range="0 90" axis').replace("-.01", "-1")
    rubbing = LEVER.replace("damping", 'frictionloss="0.1" damping')
    for text, words, left_out in (
        (lying, "world and lever touch", "contacts"),
        (stopped, "joint 'pivot' is at its stop", "contacts, stops"),
        (rubbing, "dry friction acts in pivot", "dry friction"),
    ):
        with pytest.warns(UserWarning, match=f"{words} where the robot is to be held; lqrlab leaves"):
            plant = robots.from_mujoco(mujoco.MjModel.from_xml_string(text))
        assert f"left out of the model are its {left_out}" in plant.limits


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(ImportError, match=r"pip install .*\[robots\]'"):
        robots.from_mujoco("robot.xml")


@pytest.mark.parametrize("case", hostile_files.ROBOTS, ids=lambda case: case.name)
def test_a_small_file_that_asks_for_much_memory_is_refused_in_words(case, tmp_path):
    hostile_files.met("robot", case, tmp_path / "place")
