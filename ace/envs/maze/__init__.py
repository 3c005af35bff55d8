"""The 2-D point mazes of D4RL: their grids, the simulated ball, and a navigator."""
