"""Statistics: resampling, the jackknife, trends and rank tests."""
