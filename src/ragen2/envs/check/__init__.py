"""The environment contract as a suite that anyone can run."""
