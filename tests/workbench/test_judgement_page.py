"""The page of a judgement: its numbers are those of the loops, and nothing that a file is called runs in it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bs4 import BeautifulSoup

from lqrlab import evaluation, systems
from lqrlab.evaluation import judging
from lqrlab.evaluation.scores import NO_ANSWER
from lqrlab.simulation import Verdict, rollout
from lqrlab.workbench import judgement_page
from lqrlab.workbench.figures import svg

HOSTILE = "my|_gain.py:<script>alert(1)</script>"
RATIOS = {
    "dense systems": {"network": [[1.0123, np.inf], [1.5, 30.0]], HOSTILE: [[1.0, 1.0], [1.0, 1.0]]},
    "within limits": {"network": [[1.0, 1.0000001], [1.02, np.nan]], HOSTILE: [[np.nan, np.nan]] * 2},
}


def judgement() -> evaluation.Judgement:
    def score(scenario: str, name: str) -> evaluation.Score:
        ratio = jnp.array(RATIOS[scenario][name])
        judged = jnp.where(jnp.isinf(ratio), int(Verdict.DIVERGED), int(Verdict.CONVERGED)).astype(jnp.int8)
        judged = judged if np.isfinite(ratio[0, 0]) else jnp.full_like(judged, NO_ANSWER)
        limits = (
            ("constrained", jnp.full(ratio.shape, 0.31234)) if scenario == "within limits" else ("unconstrained", None)
        )
        return evaluation.Score(ratio, judged, jnp.zeros(ratio.shape), *limits)

    scores = {scenario: {name: score(scenario, name) for name in by} for scenario, by in RATIOS.items()}
    words = {HOSTILE: {"within limits": {"<b>crane</b>": "expected <6 states>"}}}
    plants = dict.fromkeys(RATIOS, ("<b>crane</b>", "<b>crane</b>"))
    about = {"seconds": {"network": (1.234e-5, 2e-3)}, "digests": dict.fromkeys(RATIOS, "ab" * 32)}
    return evaluation.Judgement(scores, plants, words, left_out={"dense systems": 3, "within limits": 0}, **about)


def test_the_page_of_a_judgement_has_the_numbers_of_the_loops_and_runs_nothing(tmp_path):
    page = judgement_page.write(judgement(), tmp_path / "page.html", command="lqrlab judge <x>")
    shown = BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser")
    head, *rows = [[cell.text.strip() for cell in row.find_all(["th", "td"])] for row in shown.table.find_all("tr")]
    by_controller = [dict(zip(head, row)) for row in rows]
    first, silent = by_controller[0], by_controller[3]
    assert (first["diverged"], first["failed"]) == ("25", "50")  # one of four is infinite, and one 30 times the optimum
    assert (first["median"], first["p95"], first["p99"]) == ("2,900", "∞", "∞")  # of 1.23, 50, 2900 %, ∞: the higher
    assert (by_controller[1]["median"], by_controller[1]["no answer"]) == ("< 0.001", "0")
    limited = by_controller[2]
    shown_there = ("< 0.001", "2", "25", "31")
    assert tuple(limited[name] for name in ("median", "p99", "no optimum", "beyond limit")) == shown_there
    assert (silent["diverged"], silent["no answer"]) == ("–", "100")
    assert shown.details.summary.text == f"{HOSTILE}: no answer for 2 plants"
    assert "expected <6 states>" in shown.details.text
    for words in ("12 µs", "2 ms", "lqrlab judge <x>", "3 plants without a stabilizing optimum", "ab" * 8):
        assert words in shown.text.replace("\N{NO-BREAK SPACE}", " "), words
    assert not shown.select("script, table b")
    assert not {"nan", "0.0000"} & set(shown.text.lower().split())


def test_a_judgement_in_sentences_says_where_a_controller_is_good_and_where_it_is_bad():
    words = judgement_page.answer(judgement()).split("\n\n")[0]
    good = "**network:** Good on within limits (median < 0.001 %, 99 of 100 cases at most 2 % above the optimum)."
    assert words == f"{good} Bad on dense systems (median 2,900 %, 25 % of the cases diverge)."
    assert judgement_page._grade(dict.fromkeys(("diverged", "failed", "median", "p99"), 0))[1].endswith("s < 0.001 %)")


def test_the_worst_loop_is_run_again_and_drawn_beside_the_optimum(tmp_path):
    controllers, key = {"detuned": lambda problem: 0.6 * problem.K}, jax.random.key(1)
    plants = systems.sample("dc_motor", key=jax.random.key(0), num=3, spread=0.2)
    scenarios = {"dc_motor": evaluation.Scenario({"dc_motor": plants})}
    found = evaluation.judge(controllers, scenarios, key=key, starts=5)
    worst = judgement_page.worst(controllers, scenarios, found, key=key, num=3)
    ratio = np.asarray(found.scores["dc_motor"]["detuned"].ratio)
    for (words, drawn), i in zip(worst, np.argsort(-ratio.max(1)), strict=True):
        of_scenario, at = judging.key_of(key, "dc_motor"), (int(i), int(ratio[i].argmax()), 5)
        problem, x0, gain = judging.loop_of(controllers["detuned"], scenarios["dc_motor"], of_scenario, *at)
        paid = rollout(problem, gain, x0, 400).costs.sum() / problem.optimal_cost(x0)
        assert float(paid) == pytest.approx(ratio[i].max(), rel=1e-6)
        assert words.startswith(f"dc motor (dc_motor), detuned: {100 * ratio[i].max() - 100:.2g} % above the optimum.")
        assert f"speed {float(x0[1]):.2g} rad/s".replace("-", "−") in words
        assert 'aria-label="Responses of dc motor: optimal, detuned"' in drawn
    shown = judgement_page.write(found, tmp_path / "page.html", loops=worst).read_text(encoding="utf-8")
    assert shown.count("Responses of dc motor") == 3


def test_no_two_curves_have_one_colour():
    for labels in (["network", "nominal gain", "lqr", "mine"], ["a", "optimal", "b", "no control"]):
        assert len({stroke.colour for stroke in svg.strokes(labels).values()}) == len(labels)
