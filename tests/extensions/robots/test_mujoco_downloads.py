"""Robots as they are downloaded: grippers, tendons, floating bases, switches, meshes; what is in the way is named."""

import mujoco
import numpy as np
import pytest
from refusals import refused

from lqrlab import robots, simulation, systems
from lqrlab.systems import drawing

pytestmark = pytest.mark.usefixtures("catalogue_as_before")

ARM = """
<mujoco model="arm">{option}
  <default><geom contype="0" conaffinity="0"/></default>{assets}
  <worldbody>
    <body name="torso" pos="0 0 1">{base}<geom size="0.05" mass="2"/><body name="upper">
      <joint name="pan" axis="0 0 1" damping="0.1"/>
      <joint name="lift" axis="0 1 0" damping="0.2" stiffness="3" {lift}/>
      <geom type="capsule" fromto="0 0 0 0.4 0 0.1" size="0.03" mass="1.5"/>
      <body name="fore" pos="0.4 0 0.1" euler="10 20 0">
        {elbow}
        {geom}
        {finger}
      </body>
    </body></body>
  </worldbody>
  {more}
  <actuator>{motors}</actuator>
  {keys}
</mujoco>"""
MOTORS = {
    "pan": '<motor name="pan_motor" joint="pan" gear="2"/>',
    "lift": '<position name="lift_servo" joint="lift" kp="80" {lift}/>',
    "elbow": '<motor name="elbow_motor" joint="elbow" gear="3" {elbow}/>',
}
ELBOW = '<joint name="elbow" axis="0 1 0.2" damping="0.1"/>'
FOREARM = '<geom type="capsule" fromto="0 0 0 0.3 0.1 0" size="0.02" mass="0.8"/>'
FINGER = '<body name="finger" pos="0.3 0 0"><joint name="grip" type="slide"/><geom size="0.02" mass="0.1"/></body>'
TENDON = '<tendon><fixed name="cable" {}><joint joint="elbow" coef="1"/></fixed></tendon>'


def arm_file(folder, *, lift="", elbow="", motors=MOTORS, **parts):
    given = dict.fromkeys(("option", "assets", "base", "lift", "elbow", "geom", "finger", "more", "keys"), "")
    given |= {"elbow": ELBOW, "geom": FOREARM} | parts
    text = "".join(motors.values()).format(lift=lift, elbow=elbow)
    file = folder / "arm.xml"
    file.write_text(ARM.format(motors=text, **given))
    return file


def accelerations(m, xs, us):
    """MuJoCo's, of the smooth motion."""
    m.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONSTRAINT)
    data, found = mujoco.MjData(m), []
    for x, u in zip(xs, us):
        data.qpos[:], data.qvel[:], data.ctrl[:] = x[: m.nq], x[m.nq :], u
        mujoco.mj_forward(m, data)
        found.append(data.qacc.copy())
    return np.array(found)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"more": TENDON.format('stiffness="90" springlength="-1 1"')}, "tendon 'cable': has a spring.*stiffness"),
        ({"more": TENDON.format('armature="0.1"')}, "tendon 'cable': has inertia"),
        (
            {"more": '<equality><connect name="loop" body1="fore" anchor="0 0 0"/></equality>'},
            "equality 'loop': ties bodies",
        ),
        ({"option": '<option><flag actuation="disable"/></option>'}, "actuators off .* take that out"),
        ({"option": '<option density="1.2" viscosity="2e-5"/>'}, "density, viscosity> makes the air drag"),
        ({"lift": 'forcerange="-2 2"'}, r"actuator 'lift_servo': .* takes -\d.*, but its forcerange is \[-2, 2\]"),
        (
            {"elbow": ELBOW.replace("damping", 'actuatorfrcrange="-.5 .5" damping')},
            r"joint 'elbow': holding .* actuatorfrcrange is \[-0.5, 0.5\]; widen it",
        ),
        (
            {"elbow": ELBOW + ELBOW.replace('"elbow"', '"twin"')},
            "joint 'elbow' and joint 'twin': no inertia .* an armature",
        ),
        (
            {"elbow": ELBOW.replace("damping", 'springyield="2" damping')},
            "joint 'elbow': has a spring that yields.* take springyield out",
        ),
        ({"geom": ""}, "Element name 'fore'.*; give that body a mass"),
        ({"base": '<freejoint name="base"/>'}, r"joint 'base': is a free joint.* fixed=\['base'\] lets"),
    ],
)
@pytest.mark.filterwarnings("ignore:Inertia matrix")  # MuJoCo's own, while it compiles
def test_what_is_in_the_way_is_named_with_the_way_out(tmp_path, monkeypatch, parts, words):
    monkeypatch.chdir(tmp_path)
    elbow = parts.pop("elbow", ELBOW)
    file = arm_file(tmp_path, **parts)
    file.write_text(file.read_text().replace(ELBOW, elbow))
    refused(f"arm.xml: .*{words}", robots.from_mujoco, file)
    assert [f.name for f in tmp_path.iterdir()] == ["arm.xml"]  # MuJoCo writes its warnings into a file


def test_what_no_comparison_near_the_rest_can_see_is_listed_in_the_limits(tmp_path):
    pair = '<contact><pair geom1="a" geom2="b"/></contact>'
    touching = FOREARM.replace("<geom", '<geom name="a"') + '<geom name="b" size="0.01" mass="0.01"/>'
    for parts, listed, acting in (
        ({"more": TENDON.format('limited="true" range="0.1 1"')}, "the tendons' ranges", "'cable' is at its"),
        ({"more": TENDON.format('frictionloss="0.1"')}, "dry friction", "friction acts in cable"),
        ({"more": pair, "geom": touching}, "contacts", "fore and fore touch"),
    ):
        with pytest.warns(UserWarning, match=acting):
            plant = robots.from_mujoco(arm_file(tmp_path, **parts))
        assert listed in plant.limits


@pytest.mark.parametrize("flag", ["gravity", "spring", "damper"])
def test_what_the_options_switch_off_is_off(tmp_path, flag):
    file = arm_file(tmp_path, option=f'<option><flag {flag}="disable"/></option>')
    plant, random = robots.from_mujoco(file), np.random.default_rng(2)
    xs, us = random.normal(size=(5, 6)), random.normal(size=(5, 3))
    expected = accelerations(mujoco.MjModel.from_xml_path(str(file)), xs, us)
    np.testing.assert_allclose(plant.dynamics(xs, us)[:, 3:], expected, rtol=1e-7)


def test_a_fixed_joint_is_one_that_was_never_written(tmp_path):
    tied = '<equality><joint joint1="grip" joint2="elbow"/></equality>'
    keys = '<keyframe><key name="home" qpos="1 0 0 0 1 0 0 0.2 0.1 0.3 0.01"/></keyframe>'
    whole = arm_file(tmp_path, base='<freejoint name="base"/>', finger=FINGER, more=tied + TENDON.format(""), keys=keys)
    refused("fixed: expected a joint: .* did you mean elbow", robots.from_mujoco, whole, fixed=["elbo"])
    plant = robots.from_mujoco(whole, fixed=["base", "grip", "elbow"])
    assert [s.name for s in plant.states] == ["pan", "lift", "pan_rate", "lift_rate"]
    assert [s.name for s in plant.inputs] == ["pan_motor", "lift_servo"]
    np.testing.assert_allclose(plant.equilibrium()[0], [0.2, 0.1, 0, 0], atol=1e-12)
    motors = {name: MOTORS[name] for name in ("pan", "lift")}
    finger = FINGER.replace('<joint name="grip" type="slide"/>', "")
    bare = arm_file(tmp_path, elbow="", finger=finger, motors=motors)
    bare.write_text(bare.read_text().replace(ELBOW, ""))
    random = np.random.default_rng(3)
    xs, us = random.normal(size=(5, 4)), random.normal(size=(5, 2))
    m = mujoco.MjModel.from_xml_path(str(bare))
    np.testing.assert_allclose(plant.dynamics(xs, us)[:, 2:], accelerations(m, xs, us), rtol=1e-7)
    refused("fixed: joints are changed in a file", robots.from_mujoco, m, fixed=["pan"])


def test_a_rate_that_is_called_as_a_joint_gets_a_number(tmp_path):
    file = arm_file(tmp_path)
    file.write_text(file.read_text().replace('"lift"', '"pan_rate"'))
    names = [s.name for s in robots.from_mujoco(file).states]
    assert names == ["pan", "pan_rate", "elbow", "pan_rate_2", "pan_rate_rate", "elbow_rate"]


def test_an_input_has_the_unit_that_no_factor_of_the_model_changes(tmp_path):
    motors = MOTORS | {
        "lift": '<general name="bits" joint="lift" gear="2" gainprm="0.5" biastype="affine" biasprm="0 -25 -1"/>',
        "brake": '<damper name="brake" joint="pan" kv="3" ctrlrange="0 8"/>',
        "drive": '<velocity name="drive" joint="elbow" kv="9"/>',
        "amplifier": '<general name="amplifier" joint="pan" gainprm="7"/>',
    }
    plant = robots.from_mujoco(arm_file(tmp_path, motors=motors))
    units = {s.name: s.unit for s in plant.inputs}
    assert units == {
        "pan_motor": "N·m", "bits": "1", "elbow_motor": "N·m", "brake": "1", "drive": "rad/s", "amplifier": "1"
    }  # fmt: skip
    scales = {s.name: s.scale for s in (*plant.states, *plant.inputs)}
    # 0.3 rad of the joint are 0.6 of the servo, whose force 25 per unit 50 bits oppose
    np.testing.assert_allclose([scales["bits"], scales["drive"]], [0.3 * 2 * 25 / 0.5, scales["elbow_rate"]])


GRIPPER = """
<robot name="gripper">
  <link name="base"/>
  <link name="arm"><inertial><origin xyz="0.2 0 0"/><mass value="1"/>
    <inertia ixx="0.01" iyy="0.02" izz="0.02" ixy="0" ixz="0" iyz="0"/></inertial>
    <visual><origin xyz="0.2 0 0"/><geometry>{shape}</geometry></visual></link>
  <link name="tip"><inertial><mass value="0.1"/>
    <inertia ixx="1e-4" iyy="1e-4" izz="1e-4" ixy="0" ixz="0" iyz="0"/></inertial></link>
  <joint name="turn" type="continuous"><parent link="base"/><child link="arm"/><axis xyz="0 1 0"/></joint>
  <joint name="grip" type="prismatic"><origin xyz="0.4 0 0"/><parent link="arm"/><child link="tip"/><axis xyz="1 0 0"/>
    <limit lower="0" upper="0.1" effort="5" velocity="1"/><mimic joint="turn" multiplier="0.5"/></joint>
</robot>"""


def test_a_urdf_robot_is_drawn_by_what_it_has_for_the_eye(tmp_path):
    file = tmp_path / "test_gripper.urdf"
    file.write_text(GRIPPER.format(shape='<box size="0.4 0.1 0.06"/>'))
    words = r"'grip' follow joint 'turn' .*<mimic>.* fixed=\['grip'\] lets"
    refused(words, robots.from_mujoco, file, actuated=["turn"])
    table = '[test_gripper]\nfile = "test_gripper.urdf"\nactuated = ["turn"]\nfixed = ["grip"]\ndt = 0.05\n'
    (tmp_path / "plants.toml").write_text(table)
    assert systems.register_file(tmp_path / "plants.toml") == ["test_gripper"]
    plant = systems.make("test_gripper", mass_arm=2.0)
    assert (float(plant.dt), plant.inputs[0].name) == (0.05, "turn_motor")
    (box,) = plant.drawing(np.zeros(2), np.zeros(1))
    assert (box.width, box.height) == pytest.approx((0.4, 0.06))
    np.testing.assert_allclose(box.centre, [0.2, 0], atol=1e-9)
    file.write_text(GRIPPER.format(shape='<mesh filename="package://gripper/arm.stl"/>'))
    plant = robots.from_mujoco(file, actuated=["turn"], fixed=["grip"])  # its motion needs no mesh
    line, disc = plant.drawing(np.zeros(2), np.zeros(1))  # a stick in its place, and where the mass is
    assert isinstance(line, drawing.Line)
    np.testing.assert_allclose(disc.centre, [(0.2 * 1 + 0.4 * 0.1) / 1.1, 0], atol=1e-9)


def test_a_mesh_is_drawn_by_its_outline():
    corners = np.array([[0, -0.05, 0], [0, 0.05, 0.01], [0.3, 0, 0], [0.05, 0, 0.2], [0.1, 0, 0.05]])
    vertices = " ".join(map(str, corners.ravel()))
    m = mujoco.MjModel.from_xml_string(
        f'<mujoco><asset><mesh name="hand" vertex="{vertices}"/></asset><worldbody>'
        '<body><joint name="wrist" axis="0 1 0"/><geom type="mesh" mesh="hand" mass="0.5"/></body>'
        '</worldbody><actuator><motor joint="wrist"/></actuator></mujoco>'
    )
    (outline,) = robots.from_mujoco(m).drawing(np.array([0.4, 0]), np.zeros(1))
    c, s = np.cos(0.4), np.sin(0.4)
    seen = corners[:4, [0, 2]] @ np.array([[c, -s], [s, c]])  # the fifth is inside
    distance = np.linalg.norm(np.asarray(outline.points)[:, None] - seen, axis=-1)
    np.testing.assert_allclose(distance.min(1), 0, atol=1e-6)
    assert set(distance.argmin(1)) == {0, 1, 2, 3}


def test_a_robot_of_seven_joints_is_designed_for_and_what_cannot_take_it_says_what_can(tmp_path):
    bodies = "".join(
        f'<body pos="0 0 .2"><joint name="j{i}" axis="{i % 2} {1 - i % 2} 0" damping=".5" armature=".05"/>'
        '<geom type="capsule" fromto="0 0 0 0 0 .2" size=".03" mass=".5" contype="0"/>'
        for i in range(7)
    )
    motors = "".join(f'<motor joint="j{i}"/>' for i in range(7))
    file = tmp_path / "seven.xml"
    file.write_text(f"<mujoco><worldbody>{bodies}{'</body>' * 7}</worldbody><actuator>{motors}</actuator></mujoco>")
    words = "seven with 14 states and 7 inputs does not fit into 12 and 6, the most .* fixed="
    refused(words, systems.Coordinates.of, robots.from_mujoco(file))
    assert simulation.Problem.of([robots.from_mujoco(file, fixed=["j6"])]).n == 12
