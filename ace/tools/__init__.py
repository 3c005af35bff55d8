"""What is made of runs and programs: exported agents, measurements, figures."""
