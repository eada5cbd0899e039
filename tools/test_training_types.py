"""A training in float32 sees plants whose normal forms need float64."""

import jax
import numpy as np

from lqrlab import dataset, learning
from lqrlab.learning import training_step


def test_a_training_makes_normal_forms_of_plants_before_they_are_rounded():
    """Of 200 random systems, dense ones among them; made of rounded matrices some gains were off by orders."""
    problem = dataset.random_systems(jax.random.key(0), 200, full_weights=True, dense=True)
    model = learning.models.build(learning.models.used(learning.ModelConfig(kind="matrix", depth=1)))
    told = problem.told()
    found = training_step._encoded(model, problem, told.astype(np.dtype(np.float32)))
    assert found.gain.dtype == np.float32
    np.testing.assert_array_equal(found.gain, np.asarray(model.encode(told).gain).astype(np.float32))
