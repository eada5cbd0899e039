"""Controllers judged each in a process of its own: what one does costs its own rows, and nothing done is done again."""

import concurrent.futures
import dataclasses
import hashlib
import json
import resource
import subprocess
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from lqrlab import evaluation, learning, systems
from lqrlab.evaluation import Judgement, Rung
from lqrlab.extensions.judging import contenders

_OF_PLANTS = ("plants", "variants", "spread", "noise", "limit", "told", "seed")
_LIMITED = "limit", "time_limit", "memory_limit", "jobs"


def rungs_of(asked: Mapping[str, Any]) -> dict[str, Rung]:
    """The rungs that were asked for."""
    wanted, key = asked["plants"] or ("all",), jax.random.key(asked["seed"] or 0)
    trained = list(learning.weight_files.card("regulator")["trained"])
    named = [name for name in wanted if name not in ("trained", "unseen", "published", "dense", "all")]
    options = {name: asked[name] for name in ("variants", "spread", "noise", "limit")}
    rungs: dict[str, Rung] = {}
    families = [name for name in named if not Path(name).suffix]
    if families:
        rungs |= evaluation.suite(families, key=key, others=[], outside=False, **options)
    for file in (name for name in named if Path(name).suffix):
        plant = systems.load(file)
        batch = plant if plant.batch_shape else jax.tree.map(lambda a: np.asarray(a)[None], plant)
        rungs[plant.name] = Rung({plant.name: batch}, limit=asked["limit"])
    if len(named) < len(wanted):
        every = evaluation.suite(trained, key=key, **options)
        kinds = {"unseen": "families never", "published": "designs", "dense": "dense"}
        for name in (name for name in wanted if name not in named):
            begins = kinds.get(name)
            others = tuple(kinds.values())
            rungs |= {
                rung: one
                for rung, one in every.items()
                if name == "all" or (rung.startswith(begins) if begins else not rung.startswith(others))
            }
    if asked["told"] == "units":
        rungs = {name: dataclasses.replace(one, told="units", noise=one.noise or 1e-9) for name, one in rungs.items()}
    return rungs


def run(words: Sequence[str], output: Path, asked: Mapping[str, Any], say: Callable[[str], None]) -> Judgement:
    """The judgement of all contenders, what an earlier command has found among it."""
    folder = output.with_suffix(".parts") / _digest({name: asked[name] for name in (*_OF_PLANTS, "starts")})
    folder.mkdir(parents=True, exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(asked["jobs"]) as pool:
        found = list(pool.map(lambda word: _one(word, folder, asked, say), words))
    return evaluation.together([part for parts in found for part in parts])


def _one(word: str, folder: Path, asked: Mapping[str, Any], say: Callable[[str], None]) -> list[Judgement]:
    """The parts of one contender, each a rung."""
    place = folder / f"{_digest(contenders.identity(word))}"
    if not contenders.foreign(word) and asked["jobs"] == 1:
        run_here(word, place, asked, say)
    else:
        _in_process(word, place, asked)
    return [evaluation.read(file) for file in sorted(place.glob("*.json"))]


def run_here(word: str, place: Path, asked: Mapping[str, Any], say: Callable[[str], None] | None = None) -> None:
    """Judge one contender on all rungs that it has no part of yet, in this process."""
    rungs, key = rungs_of(asked), jax.random.key(asked["seed"] or 0)
    place.mkdir(parents=True, exist_ok=True)
    controller: object | None = None
    for name, rung in rungs.items():
        part = place / f"{zlib.crc32(name.encode()):08x}.json"
        if part.exists():
            continue
        if controller is None:
            controller = contenders.contender(word)
        if say is not None:
            say(f"  {word}: {name}")
        found = evaluation.judge(
            {word: controller}, {name: rung}, key=key, starts=asked["starts"], reference=_reference(rung)
        )
        found.save(part)


def _reference(rung: Rung) -> Any:
    if rung.limit is None:
        return None
    from lqrlab.extensions import predictive

    return predictive.reference


def _in_process(word: str, place: Path, asked: Mapping[str, Any]) -> None:
    """The same in a process with limits of time and memory; what it did not answer has no answer."""
