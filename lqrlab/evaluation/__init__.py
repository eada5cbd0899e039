"""Closed-loop scores relative to the exact optimum, and baselines."""

from typing import TYPE_CHECKING

from lqrlab.compute.names import lazily

if TYPE_CHECKING:
    from lqrlab.control import settling_steps
    from lqrlab.evaluation import certificate
    from lqrlab.evaluation.certificate import Certificate, certify
    from lqrlab.evaluation.judgement import Judgement
    from lqrlab.evaluation.judging import judge
    from lqrlab.evaluation.regions import Attraction, attraction
    from lqrlab.evaluation.scenarios import FamilyGain, Scenario, published, suite
    from lqrlab.evaluation.scores import Score, evaluate

__getattr__, __dir__, __all__ = lazily(__name__)
