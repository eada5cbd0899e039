"""Faults put into the package, and whether the tests notice: ``make mutants`` tries hundreds."""

import ast
import multiprocessing
import textwrap

import mutants
import pytest
from mutations import Mutation, mutations

SOURCE = textwrap.dedent(
    '''
    def share(part: float | None, whole=1.0):
        """Two - one."""
        if part is None or not whole:
            raise ValueError(f"part: expected a number, but found {part + 1}")
        print(part, end="é")
        return -part / whole
    '''
).encode()


def test_each_operator_condition_number_and_statement_is_broken_and_no_sentence_or_annotation_is():
    faults = list(mutations("toy.py", SOURCE))
    found = {(SOURCE[f.start : f.end].decode(), f.text) for f in faults}
    assert found == {
        ("1.0", "2.0"),
        ("part is None or not whole", "(part is None and (not whole))"),
        ("part is None or not whole", "True"),
        ("part is None or not whole", "False"),
        ("part is None", "(part is not None)"),
        ("not whole", "(whole)"),
        ('print(part, end="é")', "pass"),
        ('print(part, end="é")', "(print(part))"),
        ("-part / whole", "(-part * whole)"),
        ("-part", "(part)"),
    }
    for fault in faults:
        assert ast.dump(ast.parse(fault.applied(SOURCE))) != ast.dump(ast.parse(SOURCE))


@pytest.mark.parametrize(
    ("code", "old", "text"),
    [
        ("jax.default_backend() == 'cpu'", "jax.default_backend() == 'cpu'", "(jax.default_backend() != 'cpu')"),
        ("(A @ v[..., None])[..., 0]", "0", "1"),
        ("v.reshape(-1, 3)", "1", "2"),
    ],
)
def test_a_fault_without_effect_by_construction_is_marked_and_its_neighbours_are_not(code, old, text):
    same = [f for f in mutations("toy.py", f"y = {code}".encode()) if f.same]
    assert [(f"y = {code}"[f.start : f.end], f.text) for f in same] == [(old, text)]
    for other in ("(A @ v[..., i])[..., 0]", "(A @ v[..., None])[..., 0, i]", "v.reshape(1)", "x == 'cpu'"):
        assert not any(f.same for f in mutations("toy.py", f"y = {other}".encode()))


@pytest.mark.matrix
def test_a_fault_is_killed_by_the_tests_of_its_line_and_an_unchanged_file_survives_them():
    path, right, wrong = ("lqrlab/control/lyapunov.py", "2 * shift * inverse - one", "2 * shift * inverse + one")
    start = (mutants.ROOT / path).read_bytes().index(right.encode())
    tests = ["tests/library/test_control.py::test_lyapunov_equations_of_unstable_matrices_have_no_answer"]
    server = multiprocessing.get_context("forkserver")
    for text, outcome in ((right, "survived"), (wrong, "killed")):
        fault = Mutation(path, start, start + len(right), text, (62, 62))
        assert mutants._outcome(fault, tests, server)["outcome"] == outcome
    assert mutants._outcome(fault, [], server)["outcome"] == "not run"
