"""The mazes as grids of cells, and which cells a set of observations has visited. Positions are
those of the observations: cell (row, column) has its centre at (row - 0.2, column - 0.2), because
D4RL places the ball's origin 0.2 away from the centre of a cell."""

import functools
from dataclasses import dataclass

import numpy as np

# D4RL's umaze, medium and large; # is a wall.
LAYOUTS = {
    "umaze": """
        #####
        #   #
        ### #
        #   #
        #####""",
    "medium": """
        ########
        #  ##  #
        #  #   #
        ##   ###
        #  #   #
        # #  # #
        #   #  #
        ########""",
    "large": """
        ############
        #    #     #
        # ## # # # #
        #      #   #
        # #### ### #
        #  # #     #
        ## # # # ###
        #  #   #   #
        ############""",
}
OFFSET = 0.2  # from a position to the grid: the cell is round(position + OFFSET)


@dataclass(frozen=True, eq=False)
class Grid:
    """The cells of one maze; free cells are numbered row by row, from 0."""

    name: str
    numbers: np.ndarray  # int [rows, columns]; -1 is a wall
    cells: np.ndarray  # int [count, 2], (row, column) of every free cell

    @property
    def count(self) -> int:
        """How many cells are free."""
        return len(self.cells)

    @property
    def centres(self) -> np.ndarray:
        """Positions of the centres of the free cells, [count, 2]."""
        return self.cells - OFFSET

    def cell_of(self, obs: np.ndarray) -> np.ndarray:
        """The number of the cell in which each observation [..., 4] lies; -1 in a wall or outside.

        Only the first two entries are read, so positions [..., 2] will do.
        """
        cell = np.floor(np.asarray(obs)[..., :2] + (OFFSET + 0.5))
        inside = np.asarray(((cell >= 0) & (cell < self.numbers.shape)).all(axis=-1))
        row, column = np.moveaxis(np.where(inside[..., None], cell, 0).astype(int), -1, 0)
        return np.where(inside, self.numbers[row, column], -1)

    def visited(self, obs: np.ndarray) -> np.ndarray:
        """Which free cells the observations [..., 4] lie in, bool [count]."""
        cell = self.cell_of(obs)
        mask = np.zeros(self.count, bool)
        mask[cell[cell >= 0]] = True
        return mask

    def coverage(self, obs: np.ndarray) -> float:
        """The share of the free cells that the observations [..., 4] have visited."""
        return float(self.visited(obs).mean())


@functools.cache
def read_grid(name: str) -> Grid:
    """Read the grid of a maze from its layout."""
    lines = [line.strip() for line in LAYOUTS[name].strip().splitlines()]
    free = np.array([[mark != "#" for mark in line] for line in lines])
    numbers = np.where(free, np.cumsum(free).reshape(free.shape) - 1, -1)
    return Grid(name, numbers, np.argwhere(free))
