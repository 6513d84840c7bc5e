"""Real servers, and simulated ones beside them whose costs were frozen before."""
