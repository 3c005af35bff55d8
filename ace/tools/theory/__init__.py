"""The paper's performance bounds, checked on tabular MDPs with plain NumPy: exact values of both
sides of every inequality (`mdps`, `statements`), a search for violations (`search`), and the
`ace theory` command (`command`, `figures`)."""
