"""Every setting, the presets, the random keys, and what a run is asked to be."""
