"""The soak in small: nothing grows, and what grows is told."""

import gc

import jax
import jax.numpy as jnp
import pytest
import soak

from lqrlab import compute
from lqrlab.workbench import widgets


@pytest.mark.matrix
def test_a_soak_says_what_grows(monkeypatch, capsys):
    leaked = []

    def leaky(data, place, number):
        leaked.append((place / f"{number}").open("w"))

    monkeypatch.setattr(soak, "WARM", 1)
    monkeypatch.setattr(soak, "data", lambda place: None)
    monkeypatch.setattr(soak, "WORK", (soak.designs,))
    assert soak.main(["--hours", "0"]) == 0
    assert "flat" in capsys.readouterr().out
    monkeypatch.setattr(soak, "WORK", (leaky,))
    assert soak.main(["--hours", "0"]) == 1
    assert "growing: handles" in capsys.readouterr().out
    for file in leaked:
        file.close()


def test_programs_of_old_choices_and_widgets_of_closed_panels_go(tmp_path):
    """A program for each seed of a training is 18 MiB; a panel without controls keeps designs, not shown."""
    scaled, before = compute.compile(lambda x, factor: factor * x, static="factor"), len(programs())
    for factor in range(3 * compute.jit.KEPT):
        assert scaled(jnp.ones(3), factor).sum() == 3 * factor
    assert len(programs()) - before < 2 * compute.jit.KEPT
    assert scaled.report().programs == 3 * compute.jit.KEPT
    for _ in range(2):
        widgets.training_monitor(tmp_path).close()
        there = soak.measured()["widgets"]
    widgets.training_monitor(tmp_path).close()
    assert soak.measured()["widgets"] == there


def programs():
    gc.collect()
    return jax.devices()[0].client.live_executables()


def test_a_single_leap_is_no_growth():
    assert soak.slope([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 9.0, 9.0]) == 0
    assert soak.slope([1.0, 2.0, 3.0, 4.0]) == 1
