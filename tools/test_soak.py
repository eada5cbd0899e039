"""The soak in small: nothing grows, and what grows is told."""

import pytest
import soak


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


def test_a_single_leap_is_no_growth():
    assert soak.slope([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 9.0, 9.0]) == 0
    assert soak.slope([1.0, 2.0, 3.0, 4.0]) == 1
