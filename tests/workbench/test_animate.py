"""Drawings that move, read back from the SVG by arithmetic of our own; the catalogue page."""

import re
import xml.etree.ElementTree as ET

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.signal
from bs4 import BeautifulSoup
from click.testing import CliRunner
from refusals import refused
from scipy_oracle import gain

from lqrlab import control, simulation, systems
from lqrlab.systems import drawing
from lqrlab.workbench.cli import main
from lqrlab.workbench.figures import animation, catalogue_page, keyframes, loop_design
from lqrlab.workbench.runs import report

KEYFRAME = re.compile(r"([\d.]+)%\{transform:([^}]*)\}")


class Reader:
    """What a browser makes of elements and keyframes, as far as we use them."""

    def __init__(self, svg, style):
        self.root = ET.fromstring(f"<svg>{svg}</svg>")
        self.rules = dict(re.findall(r"@keyframes (\w+)\{((?:[^{}]*\{[^{}]*\})*)\}", style))

    def at(self, element, share):
        """Turn, stretch and place of an element at a share of the loop, as a 2 × 2 matrix and a vector."""
        name = re.search(r"animation-name:(\w+)", element.get("style", ""))
        if not name:
            return self.matrix(self.numbers(element.get("transform", "")))
        frames = [(float(p) / 100, self.numbers(t)) for p, t in KEYFRAME.findall(self.rules[name[1]])]
        times, values = [p for p, _ in frames], np.array([v for _, v in frames])
        return self.matrix([np.interp(share, times, column) for column in values.T])

    @staticmethod
    def numbers(transform):
        found = {k: re.findall(r"-?[\d.]+", v) for k, v in re.findall(r"(\w+)\(([^)]*)\)", transform)}
        parts = (("translate", (0, 0)), ("rotate", (0,)), ("scale", (1, 1)))
        return [float(v) for name, default in parts for v in found.get(name, default)]

    @staticmethod
    def matrix(v):
        x, y, turn, wide, tall = v
        c, s = np.cos(np.radians(turn)), np.sin(np.radians(turn))
        return np.array([[c, -s], [s, c]]) @ np.diag([wide, tall]), np.array([x, y])

    def points(self, share):
        """Corners of every element at a share of the loop, by tag."""
        for e in self.root.iter():
            if e.tag in ("rect", "circle", "path"):
                M, place = self.at(e, share)
                yield e.tag, np.array(self.outline(e)) @ M.T + place

    @staticmethod
    def outline(e):
        if e.tag == "circle":
            r = float(e.get("r"))
            return [(r, 0), (0, r), (-r, 0), (0, -r)]
        if e.tag == "rect":
            x, y, w, h = (float(e.get(k)) for k in ("x", "y", "width", "height"))
            return [(x, y), (x + w, y), (x + w, y + h), (x, y + h)]
        at, found = (0.0, 0.0), []
        for letter, numbers in re.findall(r"([MLHV])([^MLHVZ]*)", e.get("d")):
            v = [float(n) for n in re.findall(r"-?[\d.]+", numbers)]
            at = {"M": v, "L": v, "H": [*v, at[1]], "V": [at[0], *v]}[letter]
            found.append(tuple(at))
        return found


def swing(plant, count=40):
    """States and inputs that all move, absolute."""
    t = np.linspace(0, 1, count)[:, None]
    at, scale = (np.array([getattr(s, key) for s in plant.states]) for key in ("at", "scale"))
    rise, large = (np.array([getattr(s, key) for s in plant.inputs]) for key in ("at", "scale"))
    return (
        at + 0.7 * scale * np.cos((3 + 0.5 * np.arange(plant.n)) * t),
        rise + 0.7 * large * np.sin(4 * t + np.arange(plant.m)),
    )


@pytest.mark.parametrize("name", systems.names())
def test_shapes_are_where_the_family_draws_them(name):
    plant = keyframes.plain(systems.make(name))
    drawings = [plant.draw(x, u) for x, u in zip(*swing(plant))]
    left, right, bottom, top = drawing.bounds(*drawings)
    scale = 300 / max(right - left, top - bottom)
    film = keyframes.Film(np.linspace(0, 0.9, len(drawings)), 5.0)
    markup = keyframes.shapes(film, drawings, scale, (left, top))
    assert film.style
    assert len(markup + film.style) < 90_000
    reader = Reader(markup, film.style)
    for k in (0, 11, 26, 39):
        expected = [(s, drawing.outline(s)) for s in drawings[k] if not isinstance(s, drawing.Text)]
        made = list(reader.points(0.9 * k / 39))
        for tag, kind in (("rect", drawing.Box), ("circle", drawing.Disc)):
            centres = [p.mean(axis=0) for t, p in made if t == tag]
            wanted = [((p.mean(axis=0) - (left, top)) * (scale, -scale)) for s, p in expected if isinstance(s, kind)]
            assert len(centres) == len(wanted)
            np.testing.assert_allclose(centres, wanted, atol=1.0) if wanted else None
        seen = np.concatenate([p for _, p in made])
        wanted = (np.concatenate([p for _, p in expected]) - (left, top)) * (scale, -scale)
        # an arrow's head is wider than the line that stands for it
        np.testing.assert_allclose(seen.min(axis=0), wanted.min(axis=0), atol=4.5)
        np.testing.assert_allclose(seen.max(axis=0), wanted.max(axis=0), atol=4.5)
        assert seen.min() > -5
        assert seen.max() < 305


@pytest.fixture(scope="module")
def loops():
    plant = systems.make("cart_pole")
    (A, B), (Q, R) = plant.matrices(), plant.weights()
    K = control.lqrd(A, B, Q, R, plant.dt).K
    x0 = 0.5 * plant.scales[0]
    # the same program, with the optimum, without, and with the sign of the gain wrong
    runs = [simulation.rollout(plant, simulation.LinearPolicy(g * K), x0, 150) for g in (1.0, 0.0, -2.0)]
    return plant, dict(zip(("optimal", "no control", "wrong sign"), runs))


def test_two_runs_play_side_by_side_in_real_time(loops, tmp_path):
    plant, runs = loops
    film = animation.animation(plant, runs, signals=["angle", "force"], title="A < B")
    assert film.speed == 1
    assert abs(film.seconds - 3.0 - 0.8) < 1e-9
    root = ET.fromstring(film.svg)
    words = ["".join(t.itertext()) for t in root.iter("{http://www.w3.org/2000/svg}text")]
    for expected in ("A < B", "optimal", "no control", "real time", "angle [rad]", "force [N]", "time [s]", "3.00 s"):
        assert expected in words
    assert any(w.startswith("wrong sign · diverged after") for w in words)
    assert root.get("role") == "img"
    assert "starts 0.25 m" in root.get("aria-label")
    # the marks run through the charts as long as the plant does, then wait
    rules = Reader("", film.svg).rules
    mark = root.find(".//*[@class='lq-mark lq-m lq-m3-8']")
    frames = KEYFRAME.findall(rules[re.search(r"name:(\w+)", mark.get("style"))[1]])
    assert len(frames) == 2
    assert abs(float(frames[1][0]) - 100 * 3.0 / 3.8) < 0.01
    assert film.save(tmp_path / "a.svg").read_text() == film.svg
    assert film.html in film.save(tmp_path / "a.html").read_text().replace("\N{NO-BREAK SPACE}", " ")
    refused(r"saved as \.svg or \.html", film.save, tmp_path / "a.gif")


def test_poses_draw_the_plant_where_it_is(loops):
    plant, runs = loops
    picture = animation.poses(plant, runs["optimal"], count=4, title="Four moments", columns=2)
    root = ET.fromstring(picture.svg)
    words = ["".join(t.itertext()) for t in root.iter("{http://www.w3.org/2000/svg}text")]
    assert words == ["Four moments", "0.00 s", "1.00 s", "1.98 s", "2.98 s"]
    tiles = [ET.tostring(tile) for tile in root.iter("{http://www.w3.org/2000/svg}svg") if tile is not root]
    drawn = [re.sub(rb"(<\S+svg) [^>]*>", rb"\1>", tile) for tile in tiles]
    assert len(set(drawn)) == 4
    at = np.array([0, 50, 99, 149])
    drawings = keyframes.poses(plant, runs["optimal"].xs[at], runs["optimal"].us[at])
    left, right, bottom, top = drawing.bounds(*drawings)
    (body,) = (
        e for e in root.find("{http://www.w3.org/2000/svg}svg") if e.get("class") == "lq-body" and "rect" in e.tag
    )
    x, _, *_ = Reader.numbers(body.get("transform"))
    wide = (720 - 8) / 2
    scale = min(
        (wide - 8) / (right - left), (min(wide * (top - bottom) / (right - left) + 8, 200) - 8) / (top - bottom)
    )
    assert x == pytest.approx(wide / 2 + scale * (float(runs["optimal"].xs[0, 0]) - (left + right) / 2), abs=0.1)


def test_slow_and_fast_plants_say_how_they_are_played():
    plant = systems.from_matrices([[-1.0]], [[1.0]], Q=[[1]], R=[[1]], dt=1e-5)
    run = simulation.Trajectory(1e-5 * np.arange(101), np.ones((101, 1)), np.zeros((100, 1)), np.zeros(100))
    film = animation.animation(plant, run)  # without a draw of its own: bars
    assert film.speed == 1e-4
    assert "10 000 × slower than real time" in film.svg
    assert "time [ms]" in film.svg
    assert "x1 [1]" in film.svg


def test_what_cannot_be_drawn_is_refused_in_words(loops):
    plant, runs = loops
    several = jax.tree.map(lambda a: jnp.stack([a, a]), runs["optimal"])
    refused("choose one loop of a batch", animation.animation, plant, several)
    refused("has no speed; it has position", animation.animation, plant, runs, signals=["speed"])


def cleaned(markup):
    """What a report keeps of an output."""
    return BeautifulSoup(report.clean(markup), "html.parser")


def test_a_report_keeps_it_playing_and_loads_nothing(loops):
    plant, runs = loops
    film = animation.animation(plant, runs)
    page = cleaned(film._repr_mimebundle_()[0]["text/html"])
    assert not page.select("script, [src], [href], foreignobject")
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", str(page))
    kept = "".join(s.get_text() for s in page.select("style"))
    assert set(re.findall(r"@keyframes (\w+)", kept)) == set(re.findall(r"animation-name:(\w+)", str(page.svg)))
    assert "prefers-reduced-motion" in kept
    assert "light-dark(" in kept
    assert page.select_one("label input[type=checkbox]")  # to pause it


def test_the_catalogue_page_tells_all_of_a_plant(tmp_path):
    made = catalogue_page.page(["cart_pole", "mass_spring_damper"])
    page = cleaned(made.html)
    entries = page.select("details.lq-plant")
    assert {e.summary.b.get_text() for e in entries} == {"mass spring damper", "cart pole"}
    cart = next(e for e in entries if e.summary.b.get_text() == "cart pole")
    words = cart.get_text(" ").replace("\N{NO-BREAK SPACE}", " ")
    assert "one unstable real mode, time constant 0.18 s" in words
    assert "sampled every 20 ms" in words
    for name, field in systems.parameter_fields(systems.family("cart_pole")).items():
        assert name in words
        assert field.metadata["about"] in words
    assert len(cart.select("math")) == 5
    assert "@keyframes" in str(page)
    assert not page.select("script, [src]")
    assert any(".lq-group{display: grid" in style.get_text() for style in page.select("style"))
    assert not [h for h in re.findall(r'href="([^"]*)"', str(page)) if not h.startswith("#")]
    # the command writes the same family from the nonlinear plant
    file = tmp_path / "cart.html"
    result = CliRunner().invoke(main, ["systems", "mass_spring_damper", "--html", str(file)])
    assert result.exit_code == 0
    assert "nonlinear plant" in file.read_text()


def test_the_responses_of_the_page_are_the_plants():
    """Also of a plant that is padded to the size of another."""
    plants = [systems.make(name) for name in ("mass_spring_damper", "cart_pole")]
    for plant, shown in zip(plants, catalogue_page.demonstrations(plants)):
        run = shown.optimal
        A, B, Q, R, N = (np.asarray(a) for a in control.discretize(*plant.matrices(), *plant.weights(), plant.dt))
        K, _ = gain(A, B, Q, R, N)
        x = loop_design.start(plant)
        for t in range(len(run.us)):
            np.testing.assert_allclose(run.xs[t], x, atol=1e-7 * np.abs(run.xs).max())
            x = (A - B @ K) @ x
        np.testing.assert_allclose(run.us, -run.xs[:-1] @ K.T, atol=1e-7 * np.abs(run.us).max())
        A, B = (np.asarray(a) for a in plant.matrices())
        grown = [scipy.linalg.expm(A * time) @ loop_design.start(plant) for time in shown.free.ts]
        np.testing.assert_allclose(shown.free.xs, grown, atol=1e-6 * np.abs(grown).max())
