"""Networks and policies as ONNX files, which any runtime of ONNX executes without JAX."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lqrlab.compute import checks, extras
from lqrlab.compute.files import write_atomic
from lqrlab.extensions.deployment import onnx_graph, onnx_operators
from lqrlab.learning import checkpoints, models
from lqrlab.learning.network_policy import is_network
from lqrlab.simulation import Policy, Problem, Told, bind, is_policy
from lqrlab.simulation.policies import LinearPolicy
from lqrlab.systems import M_MAX, N_MAX, Coordinates, Plant

_IR = 10  # of ONNX 1.16: what runtimes of the last years read
Program = tuple[Callable[..., dict[str, Any]], Callable[[int], dict[str, jax.ShapeDtypeStruct]]]
"""A function of named arrays, to such; and its arguments by the number of rows in the batch."""


def to_onnx(
    network: object, path: str | Path, problem: Problem | Plant | None = None, *, dtype: str = "float32"
) -> Path:
    """A network, or a policy, as an ONNX file, for any number of rows at once.

    A network alone is exported as it is: from the arrays of a :class:`lqrlab.simulation.Told` (scaled, padded to 12
    states and 6 inputs, those that it reads) to its ``gain`` ``[batch, 6, 12]``, ũ = −gain x̃, if that is its answer
    (a matrix network's at the plant's own sample time alone; of a problem, as below, it is the best of several);
    else from them and a window ``past_x``, ``past_u``, ``time_mask`` to ``u`` ``[batch, 6]``.

    A controller of a problem is exported as its policy: from deviations ``x`` ``[batch, n]`` and what it remembers,
    ``memory_0``, …, to ``u`` ``[batch, m]`` and ``next_memory_0``, …. What it remembers at the start, and signals with
    their units, are in the file's metadata as JSON.

    Args:
        network: of :mod:`lqrlab.learning.models`, or the ``checkpoints`` folder of one; or whatever
            :func:`lqrlab.simulation.bind` takes, such as a gain.
        path: of the file, ending in ``.onnx``.
        problem: what it controls. A gain and a policy that is bound already need none.
        dtype: ``"float32"``, or ``"float64"`` where rounding matters: a gain that comes of inverted matrices has some
            five digits in float32, in JAX as well.

    Raises:
        ValueError: which operation of JAX has no counterpart, and the way out.
        ImportError: without the package ``onnx``, which the extra ``deployment`` installs.
    """
    extras.load("onnx", "deployment", "to_onnx")
    file = checks.path("path", path)
    if file.suffix != ".onnx":
        raise ValueError(f"path: expected a file ending in .onnx, but found {file.name!r}")
    checks.choice("dtype", dtype, ("float32", "float64"))
    if problem is None and isinstance(network, str | Path):
        network = checkpoints.load(network, "best")
    about: dict[str, Any] = {}
    # bound as it would be for a simulation, and traced in the type of the file
    policy = None if problem is None and is_network(network) else _policy(network, problem)
    with jax.enable_x64(dtype == "float64"):
        if policy is None:
            program = _of_network(network, dtype)
        else:
            program, about = _of_policy(policy, problem, dtype)
        model = _model(program, about)
    return write_atomic(file, model.SerializeToString())


def _policy(controller: Any, problem: Problem | Plant | None) -> Policy:
    if problem is not None:
        return bind(controller, problem)
    if is_policy(controller):
        return controller.as_gain() if hasattr(controller, "as_gain") else controller
    K = getattr(controller, "K", controller)
    if callable(K) or np.ndim(checks.real("network", K)) != 2:
        raise ValueError(
            f"network: expected a network, a bound policy or a gain [m, n], but found {type(controller).__name__}; say "
            "of which plant, to_onnx(controller, path, problem)"
        )
    return LinearPolicy(jnp.asarray(K))


# Programs -----------------------------------------------------------------------------------------------------


def _of_network(network: Any, dtype: str) -> Program:
    graph, params = models.split(network)
    params = _converted(params, dtype)
    window, linear = network.config.window, network.linear
    sizes: dict[str, tuple[int, ...]] = {
        "A": (N_MAX, N_MAX),
        "B": (N_MAX, M_MAX),
        "Q": (N_MAX, N_MAX),
        "R": (M_MAX, M_MAX),
        "N": (N_MAX, M_MAX),
    }
    sizes |= {"state_mask": (N_MAX,), "input_mask": (M_MAX,)}
    seen = {} if linear else {"past_x": (window, N_MAX), "past_u": (window, M_MAX), "time_mask": (window,)}

    def run(**given: Any) -> dict[str, Any]:
        masks = given["state_mask"], given["input_mask"]
        units = Coordinates(jnp.ones_like(masks[0]), jnp.ones_like(masks[1]), *masks)
        idle = jnp.zeros_like(masks[0][:, 0])  # noise and limits, of which no network is told
        told = Told(units, given["A"], idle, idle, idle, *(given[k] for k in "ABQRN"))
        net: Any = models.merge(graph, params)
        context = net.encode(told)
        if linear:
            return {"gain": context.gain.reshape(-1, M_MAX, N_MAX)}
        return {"u": net(*(given[k] for k in seen), context, last=True)[:, 0]}

    def arguments(batch: int) -> dict[str, jax.ShapeDtypeStruct]:
        shapes = {**sizes, **seen}
        return {k: jax.ShapeDtypeStruct((batch, *shape), dtype) for k, shape in shapes.items()}

    return run, arguments


def _of_policy(policy: Policy, problem: Problem | Plant | None, dtype: str) -> tuple[Program, dict[str, Any]]:
    policy = _converted(policy, dtype)
    start, tree = jax.tree.flatten(policy.init(()))
    n = _states(policy) if problem is None else problem.n

    def run(x: Any, **memory: Any) -> dict[str, Any]:
        after, u = policy(jax.tree.unflatten(tree, memory.values()), x)
        return {"u": u, **{f"next_{k}": a for k, a in zip(memory, jax.tree.leaves(after))}}

    def arguments(batch: int) -> dict[str, jax.ShapeDtypeStruct]:
        memory = jax.tree.leaves(jax.eval_shape(lambda: policy.init((batch,))))
        x = jax.ShapeDtypeStruct((batch, n), dtype)
        return {"x": x, **{f"memory_{i}": jax.ShapeDtypeStruct(a.shape, a.dtype) for i, a in enumerate(memory)}}

    about: dict[str, Any] = {"memory": [np.asarray(a).tolist() for a in start]}
    plant = problem.plant if isinstance(problem, Problem) else problem
    if plant is not None:
        about |= {"states": [s.label for s in plant.states], "inputs": [s.label for s in plant.inputs]}
    return (run, arguments), about


def _converted(values: Any, dtype: str) -> Any:
    """A pytree with its floating-point numbers in this type."""

    def converted(a: Any) -> Any:
        if not hasattr(a, "dtype"):  # a policy that is no pytree is its own only leaf
            return a
        return jnp.asarray(np.asarray(a), dtype if jnp.issubdtype(a.dtype, np.inexact) else None)

    return jax.tree.map(converted, values)


def _states(policy: Any) -> int:
    n = policy.K.shape[-1] if type(policy) is LinearPolicy else getattr(policy, "n", None)
    if n is None:
        raise ValueError(
            f"problem: a {type(policy).__name__} does not say how many states it sees; say of which plant, "
            "to_onnx(controller, path, problem)"
        )
    return n


def _model(program: Program, about: dict[str, Any]) -> Any:
    """The file's content: the program, traced for two sizes of its batch, with the operators of ONNX."""
    onnx = extras.load("onnx", "deployment", "to_onnx")
    run, arguments = program
    given = [arguments(batch) for batch in onnx_graph.BATCHES]
    one, other = (jax.make_jaxpr(run)(**a) for a in given)
    results = list(jax.eval_shape(run, **given[0]))
    # keyword arguments are in the order of their names, as all keys of a pytree are
    names, results = sorted(given[0]), sorted(results)
    shapes = {k: onnx_graph.sizes_of(given[0][k], given[1][k]) for k in names}
    graph = onnx_graph.Graph(
        next(k for k in names if shapes[k][:1] == (onnx_graph.Multiple(1),)), onnx_operators.OPERATORS
    )
    values = [graph.add("Identity", v) for v in onnx_graph.translate(graph, one, other, names)]
    nodes, constants, read = graph.needed(values)
    renamed = dict(zip(values, results))
    for node in nodes:
        node.output[:] = [renamed.get(k, k) for k in node.output]
    inputs = [_signature(k, shapes[k], given[0][k].dtype) for k in names if k in read or k == graph.batch]
    outputs = [
        _signature(k, onnx_graph.sizes_of(a, b), a.dtype) for k, a, b in zip(results, one.out_avals, other.out_avals)
    ]
    held = [onnx.numpy_helper.from_array(a, k) for k, a in constants.items()]
    made = onnx.helper.make_graph(nodes, "controller", inputs, outputs, held)
    opset = [onnx.helper.make_opsetid("", onnx_operators.OPSET)]
    model = onnx.helper.make_model(made, opset_imports=opset, ir_version=_IR, producer_name="lqrlab")
    onnx.helper.set_model_props(model, {k: json.dumps(v) for k, v in about.items()})
    onnx.checker.check_model(model, full_check=True)
    return model


def _signature(name: str, shape: onnx_graph.Sizes, dtype: Any) -> Any:
    """An input or output: its name, type and shape, in which the batch has a name."""
    onnx = extras.load("onnx", "deployment", "to_onnx")
    sizes = [s if not isinstance(s, onnx_graph.Multiple) else "batch" if s == 1 else f"{s}*batch" for s in shape]
    return onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), sizes)
