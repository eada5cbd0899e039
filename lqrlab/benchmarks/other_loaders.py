"""Other libraries on the same file: run as a script, so that it forks no process that has started JAX.

``python contenders.py torch|grain_batch|grain_window FILE BATCH WINDOW SECONDS`` prints windows/s. Each delivers
shuffled windows of states and inputs, zeros before the trajectory began, as its users would write it.
"""

import sys
import time
from typing import Any

import h5py
import numpy as np


class Windows:
    """What PyTorch and grain ask for: a length and the window of a number."""

    def __init__(self, path: str, window: int) -> None:
        self.path, self.window = path, window
        self.file: Any = None
        with h5py.File(path) as file:
            self.runs, self.steps, _ = file["trajectories/controls"].shape

    def __len__(self) -> int:
        return self.runs * self.steps

    def __getitem__(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        if self.file is None:  # opened by the process that reads
            self.file = h5py.File(self.path)
            group = self.file["trajectories"]
            self.states, self.controls = group["states"], group["controls"]
        trajectory, t = divmod(int(i), self.steps)
        first = max(t - self.window + 1, 0)
        x = np.zeros((self.window, self.states.shape[2]), np.float32)
        u = np.zeros((self.window, self.controls.shape[2]), np.float32)
        x[first - t - 1 :] = self.states[trajectory, first : t + 1]
        if t:
            before = self.controls[trajectory, max(first - 1, 0) : t]
            u[-len(before) :] = before
        return x, u


def pieces(path: str) -> tuple[np.ndarray, int]:
    """All of a file in memory, states and inputs side by side, and the windows of a trajectory."""
    with h5py.File(path) as file:
        states, controls = (file[f"trajectories/{name}"][...] for name in ("states", "controls"))
    return np.concatenate([states[:, :-1], controls], axis=-1), controls.shape[1]


def torch(path: str, batch: int, window: int) -> Any:
    """A DataLoader with two workers."""
    from torch.utils.data import DataLoader

    return DataLoader(Windows(path, window), batch_size=batch, shuffle=True, num_workers=2)


def grain_batch(path: str, batch: int, window: int) -> Any:
    """One element a whole batch, gathered by NumPy."""
    import grain

    rows, steps = pieces(path)
    last = rows.shape[1] - window + 1  # whole windows alone, which is in its favour
    every = rows.reshape(-1, rows.shape[2])

    def gather(seed: int) -> np.ndarray:
        random = np.random.default_rng(seed)
        at = random.integers(len(rows), size=batch) * steps + random.integers(last, size=batch)
        return every.take(at[:, None] + np.arange(window), axis=0, mode="clip")

    return grain.MapDataset.range(len(rows) * steps // batch).map(gather).to_iter_dataset()


def grain_window(path: str, batch: int, window: int) -> Any:
    """One element a window, shuffled and batched by grain."""
    import grain

    rows, _ = pieces(path)
    last = rows.shape[1] - window + 1

    def cut(i: int) -> np.ndarray:
        return rows[i // last, i % last : i % last + window]

    whole = grain.MapDataset.range(len(rows) * last).shuffle(seed=0).map(cut)
    return whole.to_iter_dataset().batch(batch)


def main(name: str, path: str, batch: int, window: int, seconds: float) -> None:
    """Windows/s from the second batch on, for so long at most."""
    batches = iter(
        {"torch": torch, "grain_batch": grain_batch, "grain_window": grain_window}[name](path, batch, window)
    )
    next(batches)
    began, count = time.perf_counter(), 0
    for _ in batches:
        count += 1
        if time.perf_counter() - began > seconds:
            break
    print(count * batch / (time.perf_counter() - began))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
